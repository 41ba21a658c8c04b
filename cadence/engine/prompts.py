"""The shapes a prompt may come in, and how they become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict

from cadence.core.errors import InvalidRequestError


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]


PromptType = str | list[int] | TextPrompt | TokensPrompt

_KNOWN = {"prompt", "prompt_token_ids", "cache_salt"}
_REFUSED = {
    "prompt_embeds": "this model takes token ids",
    "multi_modal_data": "this model takes text only",
    "encoder_prompt": "this model is a decoder",
    "decoder_prompt": "this model is a decoder",
}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    text: str | None
    token_ids: list[int] | None  # at least one of the two is given
    cache_salt: str = ""


def split_prompts(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or many: a str, a dict, or a list of token ids is one; any other sequence is many."""
    if isinstance(prompts, (str, Mapping)) or _is_token_list(prompts):
        return [prompts]  # type: ignore[list-item]
    if not isinstance(prompts, Sequence):
        raise InvalidRequestError(f"prompts must be a str, a dict or a list, not {type(prompts).__name__}", "prompts")
    return list(prompts)  # type: ignore[arg-type]


def parse_prompt(prompt: Any) -> ParsedPrompt:
    if isinstance(prompt, str):
        return ParsedPrompt(prompt, None)
    if isinstance(prompt, Mapping):
        return _parse_dict(prompt)
    if _is_token_list(prompt):
        return ParsedPrompt(None, list(prompt))
    raise InvalidRequestError(
        f"a prompt must be a str, a list of token ids, or a dict with 'prompt' or 'prompt_token_ids', "
        f"not {type(prompt).__name__}",
        "prompt",
    )


def _parse_dict(prompt: Mapping[str, Any]) -> ParsedPrompt:
    for key, value in prompt.items():
        if key in _REFUSED and value:
            raise InvalidRequestError(f"{key} cannot be used: {_REFUSED[key]}", key)
        if key not in _KNOWN and key not in _REFUSED:
            raise InvalidRequestError(f"unknown key {key!r} in a prompt; known: {', '.join(sorted(_KNOWN))}", key)
    text, ids = prompt.get("prompt"), prompt.get("prompt_token_ids")
    if text is None and ids is None:
        raise InvalidRequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'", "prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"'prompt' must be a str, not {type(text).__name__}", "prompt")
    salt = prompt.get("cache_salt") or ""
    if not isinstance(salt, str):
        raise InvalidRequestError(f"'cache_salt' must be a str, not {type(salt).__name__}", "cache_salt")
    return ParsedPrompt(text, None if ids is None else list(ids), salt)


def _is_token_list(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], int)

"""The shapes a prompt may come in, and how they become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from cadence.config.pooling import PLAIN_TEXT, TextForm
from cadence.core.checks import integer
from cadence.core.errors import InvalidRequestError
from cadence.text.tokenizer import Tokenizer


class TextPrompt(TypedDict):
    prompt: str
    cache_salt: NotRequired[str]
    data_parallel_rank: NotRequired[int | None]  # the engine that it is for; None = any


class TokensPrompt(TypedDict):
    prompt_token_ids: list[int]
    prompt: NotRequired[str]
    cache_salt: NotRequired[str]
    tenant: NotRequired[str]  # whose request it is: tenants share what they wait for
    data_parallel_rank: NotRequired[int | None]  # the engine that it is for; None = any
    second_from: NotRequired[int]  # the place of a second text, where the model tells two apart; 0 = there is none


_KNOWN = {"prompt", "prompt_token_ids", "cache_salt", "tenant", "data_parallel_rank", "second_from"}
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
    output_token_ids: tuple[int, ...] = ()  # of an answer that is made again: it begins with these
    tenant: str = ""
    data_parallel_rank: int | None = None
    second_from: int = 0  # the place of the first token of a second text; 0 = there is none


PromptType = str | list[int] | TextPrompt | TokensPrompt | ParsedPrompt


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
    if isinstance(prompt, ParsedPrompt):
        return prompt
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
    return ParsedPrompt(
        text,
        None if ids is None else list(ids),
        salt,
        tenant=str(prompt.get("tenant") or ""),
        data_parallel_rank=prompt.get("data_parallel_rank"),
        second_from=integer("second_from", prompt.get("second_from") or 0, low=0),
    )


def pinned(prompt: PromptType, data_parallel_rank: int | None) -> PromptType:
    """A prompt for the engine of this number; None leaves it as it is."""
    if data_parallel_rank is None:
        return prompt
    return replace(parse_prompt(prompt), data_parallel_rank=data_parallel_rank)


def formed(prompt: PromptType, form: TextForm) -> PromptType:
    """A prompt whose text has this form; token ids stay as they are."""
    if form == PLAIN_TEXT:
        return prompt
    parsed = parse_prompt(prompt)
    return parsed if parsed.token_ids is not None else replace(parsed, text=form.of(parsed.text or ""))


def resumed(prompt: TokensPrompt, output_token_ids: Sequence[int]) -> ParsedPrompt:
    """A prompt whose answer begins with these."""
    return replace(_parse_dict(prompt), output_token_ids=tuple(output_token_ids))


def tokenised(prompt: PromptType, tokenizer: Tokenizer, options: Mapping[str, Any]) -> PromptType:
    """A prompt by its tokens, under vLLM's `tokenization_kwargs`: without special tokens added, or cut to the last
    `truncate_prompt_tokens`."""
    unknown = [name for name in options if name not in ("add_special_tokens", "truncate_prompt_tokens")]
    if unknown:
        message = f"tokenization_kwargs: {', '.join(unknown)} is not supported; give prompt_token_ids instead"
        raise InvalidRequestError(message, "tokenization_kwargs")
    parsed = parse_prompt(prompt)
    ids = parsed.token_ids
    if ids is None:
        ids = tokenizer.encode(parsed.text or "", add_special_tokens=bool(options.get("add_special_tokens", True)))
    keep = options.get("truncate_prompt_tokens")
    if keep is not None and (not isinstance(keep, int) or keep < 1):
        raise InvalidRequestError(f"truncate_prompt_tokens must be at least 1; got {keep!r}", "tokenization_kwargs")
    return replace(parsed, token_ids=ids[-keep:] if keep else ids)


def _is_token_list(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], int)

"""The shapes a prompt may come in, and how they become one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NotRequired, TypedDict

from cadence.config.pooling import PLAIN_TEXT, TextForm
from cadence.core.checks import integer
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.inputs.media import MediaInput
from cadence.engine.text.prompt_media import AudioClip, MediaList, media_of
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


class VectorsPrompt(TypedDict):
    """In the place of tokens, where the engine takes them."""

    prompt_embeds: Any  # [tokens, hidden size], of numbers
    cache_salt: NotRequired[str]
    tenant: NotRequired[str]
    data_parallel_rank: NotRequired[int | None]


class EncoderDecoderPrompt(TypedDict):
    """For a model with an encoder."""

    encoder_prompt: Any  # a text, token ids, a dict of either, or an `EncoderInput`
    decoder_prompt: NotRequired[Any]  # a text, token ids or a dict of either; None = what the model begins with
    cache_salt: NotRequired[str]
    tenant: NotRequired[str]
    data_parallel_rank: NotRequired[int | None]


_TWO = ("encoder_prompt", "decoder_prompt")
_ONE = (
    *("prompt", "prompt_token_ids", "multi_modal_data", "second_from", "prompt_embeds", "multi_modal_uuids"),
    "mm_processor_kwargs",
)
_KNOWN = {*_ONE, *_TWO, "cache_salt", "tenant", "data_parallel_rank"}


@dataclass(frozen=True, slots=True)
class ParsedPrompt:
    text: str | None
    token_ids: list[int] | None  # at least one of the two is given, unless there is a source
    cache_salt: str = ""
    output_token_ids: tuple[int, ...] = ()  # of an answer that is made again: it begins with these
    tenant: str = ""
    data_parallel_rank: int | None = None
    second_from: int = 0  # the place of the first token of a second text; 0 = there is none
    source: ParsedPrompt | AudioClip | EncoderInput | MediaList | MediaInput | None = None  # beside its tokens


PromptType = str | list[int] | TextPrompt | TokensPrompt | VectorsPrompt | EncoderDecoderPrompt | ParsedPrompt


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
    for key in prompt:
        if key not in _KNOWN:
            raise InvalidRequestError(f"unknown key {key!r} in a prompt; known: {', '.join(sorted(_KNOWN))}", key)
    given = _extras(prompt)
    if any(prompt.get(name) is not None for name in _TWO):
        return replace(_parse_two(prompt), **given)
    text, ids, vectors = prompt.get("prompt"), prompt.get("prompt_token_ids"), prompt.get("prompt_embeds")
    if vectors is not None:
        return ParsedPrompt(None, [], source=MediaList({}, vectors), **given)
    if text is None and ids is None:
        raise InvalidRequestError("a prompt dict needs 'prompt' or 'prompt_token_ids'", "prompt")
    if text is not None and not isinstance(text, str):
        raise InvalidRequestError(f"'prompt' must be a str, not {type(text).__name__}", "prompt")
    return ParsedPrompt(
        text,
        None if ids is None else list(ids),
        second_from=integer("second_from", prompt.get("second_from") or 0, low=0),
        source=media_of(prompt),
        **given,
    )


def _extras(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """What a prompt holds besides its tokens, as fields of `ParsedPrompt`."""
    salt = prompt.get("cache_salt") or ""
    if not isinstance(salt, str):
        raise InvalidRequestError(f"'cache_salt' must be a str, not {type(salt).__name__}", "cache_salt")
    return {
        "cache_salt": salt,
        "tenant": str(prompt.get("tenant") or ""),
        "data_parallel_rank": prompt.get("data_parallel_rank"),
    }


def _parse_two(prompt: Mapping[str, Any]) -> ParsedPrompt:
    """One for the encoder, and one that the decoder begins with."""
    encoder, decoder = (prompt.get(name) for name in _TWO)
    if extra := [name for name in _ONE if prompt.get(name)]:
        raise InvalidRequestError(f"give encoder_prompt and decoder_prompt, or {extra[0]}; not both", extra[0])
    if encoder is None:
        raise InvalidRequestError("encoder_prompt is missing: the decoder_prompt alone gives nothing to read", _TWO[0])
    begins = ParsedPrompt(None, None) if decoder is None else _named(decoder, _TWO[1])
    if begins.source is not None:
        raise InvalidRequestError("decoder_prompt must be a text or token ids", _TWO[1])
    if isinstance(encoder, EncoderInput):
        return replace(begins, source=encoder)
    source = _named(encoder, _TWO[0])
    return replace(begins, source=source if source.source is None else source.source)


def _named(prompt: Any, name: str) -> ParsedPrompt:
    """One of two prompts. name: where it was given"""
    if isinstance(prompt, str):
        return ParsedPrompt(prompt, None)
    try:
        return ParsedPrompt(None, []) if isinstance(prompt, list) and not prompt else parse_prompt(prompt)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{name}: {error}", name) from None


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


def resumed(prompt: TokensPrompt | ParsedPrompt, output_token_ids: Sequence[int]) -> ParsedPrompt:
    """A prompt whose answer begins with these."""
    return replace(parse_prompt(prompt), output_token_ids=tuple(output_token_ids))


def tokenised(prompt: PromptType, tokenizer: Tokenizer, options: Mapping[str, Any]) -> PromptType:
    """A prompt by its tokens, under vLLM's `tokenization_kwargs`: without special tokens added, or cut to the last
    `truncate_prompt_tokens`."""
    unknown = [name for name in options if name not in ("add_special_tokens", "truncate_prompt_tokens")]
    if unknown:
        message = f"tokenization_kwargs: {', '.join(unknown)} is not supported; give prompt_token_ids instead"
        raise InvalidRequestError(message, "tokenization_kwargs")
    parsed = parse_prompt(prompt)
    if parsed.source is not None:
        message = "tokenization_kwargs are for prompts of one text: give encoder_prompt and decoder_prompt as token ids"
        raise InvalidRequestError(message, "tokenization_kwargs")
    ids = parsed.token_ids
    if ids is None:
        ids = tokenizer.encode(parsed.text or "", add_special_tokens=bool(options.get("add_special_tokens", True)))
    keep = options.get("truncate_prompt_tokens")
    if keep is not None and (not isinstance(keep, int) or keep < 1):
        raise InvalidRequestError(f"truncate_prompt_tokens must be at least 1; got {keep!r}", "tokenization_kwargs")
    return replace(parsed, token_ids=ids[-keep:] if keep else ids)


def _is_token_list(prompt: Any) -> bool:
    return isinstance(prompt, Sequence) and not isinstance(prompt, str) and bool(prompt) and isinstance(prompt[0], int)

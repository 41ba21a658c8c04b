"""What a prompt is for a model with an encoder: something to read, and tokens that the decoder begins with.

| prompt | the encoder reads | the decoder begins with |
|---|---|---|
| a text, or token ids | these | what the model's files name |
| encoder_prompt, decoder_prompt | the first | the second, after the token that the files name |
| encoder_prompt | it | what the model's files name |
| prompt, and multi_modal_data with audio | the audio | the prompt, after the token that the files name |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from cadence.config.encoder_config import EncoderConfig
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.inputs.media import MediaInput
from cadence.engine.text.prompt_media import AudioClip, MediaList
from cadence.engine.text.prompts import ParsedPrompt
from cadence.engine.text.token_ids import check_range, integers
from cadence.text.null_tokenizer import AnyTokenizer

_NO_PLACEHOLDERS: Mapping[str, str] = MappingProxyType({})

Listen = Callable[[AudioClip], EncoderInput]  # raises InvalidRequestError


class NoEncoderPrompts:
    """Of a decoder alone: a prompt is a prompt."""

    placeholders = _NO_PLACEHOLDERS

    def forget(self) -> None:
        """Nothing is kept."""

    def divided(self, parsed: ParsedPrompt) -> ParsedPrompt:
        if isinstance(parsed.source, AudioClip | MediaList):
            name = "multi_modal_data" if parsed.text or parsed.token_ids else "prompt_embeds"
            raise InvalidRequestError(f"{name} cannot be used: this model takes text only", name)
        if parsed.source is not None:
            raise InvalidRequestError("encoder_prompt cannot be used: this model is a decoder", "encoder_prompt")
        return parsed


NO_ENCODER_PROMPTS = NoEncoderPrompts()


class EncoderPrompts:
    placeholders = _NO_PLACEHOLDERS

    def forget(self) -> None:
        """Nothing is kept."""

    def __init__(self, config: EncoderConfig, vocab_size: int, tokenizer: AnyTokenizer, listen: Listen) -> None:
        """listen: features of audio, for a model that reads these"""
        self._config = config
        self._vocab_size = vocab_size
        self._tokenizer = tokenizer
        self._listen = listen

    def divided(self, parsed: ParsedPrompt) -> ParsedPrompt:
        """-> the tokens of the decoder's prompt, not checked, and what the encoder reads, checked"""
        if parsed.source is None and not self._config.reads_audio:
            content = self._content(ParsedPrompt(parsed.text, parsed.token_ids), "prompt")
            return replace(parsed, token_ids=self._begun([]), source=content)
        if isinstance(parsed.source, MediaList | MediaInput):
            message = "multi_modal_data: this model's encoder reads text, or sound as 'audio'"
            raise InvalidRequestError(message, "multi_modal_data")
        content = self._content(parsed.source, "encoder_prompt")
        return replace(parsed, token_ids=self._begun(self._decoder_ids(parsed)), source=content)

    def _content(self, source: ParsedPrompt | AudioClip | EncoderInput | None, name: str) -> EncoderInput:
        """name: where it was given"""
        if isinstance(source, EncoderInput):
            self._check_kind(len(source.token_ids_np) == 0, name)
            self._check_length(source.length, name)
            return source
        self._check_kind(not isinstance(source, ParsedPrompt), name)
        if isinstance(source, ParsedPrompt):
            return self._text(source, name)
        if source is None:
            message = "multi_modal_data is missing: this model's encoder reads audio: {'audio': (samples, rate)}"
            raise InvalidRequestError(message, "multi_modal_data")
        content = self._listen(source)
        self._check_length(content.length, "multi_modal_data")
        return content

    def _text(self, source: ParsedPrompt, name: str) -> EncoderInput:
        if source.token_ids is None:
            token_ids = self._tokenizer.encode(source.text or "")
        else:
            self._check_length(len(source.token_ids), name)  # before they are looked at
            token_ids = integers(source.token_ids, name)
        check_range(token_ids, self._vocab_size, name)
        self._check_length(len(token_ids), name)
        return EncoderInput.of_tokens(token_ids)

    def _check_kind(self, is_audio: bool, name: str) -> None:
        if is_audio and not self._config.reads_audio:
            message = "multi_modal_data cannot be used: this model's encoder reads text"
            raise InvalidRequestError(message, "multi_modal_data")
        if not is_audio and self._config.reads_audio:
            message = f"{name} cannot be text: this model's encoder reads audio, which is given as multi_modal_data"
            raise InvalidRequestError(message, name)

    def _check_length(self, count: int, name: str) -> None:
        if not count:
            raise InvalidRequestError(f"the {name} is empty: the encoder reads at least one token", name)
        if count > self._config.max_len:
            message = f"the {name} has {count} tokens; this model's encoder reads at most {self._config.max_len}"
            raise InvalidRequestError(message, name)

    def _decoder_ids(self, parsed: ParsedPrompt) -> list[int]:
        if parsed.token_ids is not None:
            token_ids = integers(parsed.token_ids, "decoder_prompt")
            check_range(token_ids, self._vocab_size, "decoder_prompt")
            return token_ids
        return self._tokenizer.encode(parsed.text, add_special_tokens=False) if parsed.text else []

    def _begun(self, token_ids: list[int]) -> list[int]:
        """After what the model's files say that a decoder begins with, where that is not yet there."""
        begins = self._config.begins
        if not token_ids and not begins:
            message = "decoder_prompt is missing: the model's files name no decoder_start_token_id to begin with"
            raise InvalidRequestError(message, "decoder_prompt")
        if not token_ids:
            return list(begins)
        # A transcript's beginning may come after the text before it, for context.
        head = token_ids if self._config.reads_audio else token_ids[:1]
        return token_ids if not begins or begins[0] in head else [begins[0], *token_ids]

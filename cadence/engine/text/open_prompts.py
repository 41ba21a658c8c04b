"""What prompts are for a model, chosen by what it reads beside tokens."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Protocol

from cadence.audio.feature_config import WHISPER_FEATURES, read_feature_config
from cadence.config.encoder_config import EncoderConfig
from cadence.config.media_config import MediaConfig
from cadence.engine.text.encoder_prompts import NO_ENCODER_PROMPTS, EncoderPrompts
from cadence.engine.text.listening import listen
from cadence.engine.text.media_prompts import MediaPrompts
from cadence.engine.text.prompts import ParsedPrompt
from cadence.text.null_tokenizer import AnyTokenizer


class Prompts(Protocol):
    @property
    def placeholders(self) -> Mapping[str, str]:
        """By kind of medium, what stands for one in a prompt; empty = the model takes none among its tokens."""
        ...

    def forget(self) -> None:
        """What was sent under names that clients gave it."""
        ...

    def divided(self, parsed: ParsedPrompt) -> ParsedPrompt:
        """-> the tokens that the decoder begins with, and what it reads, sees or hears beside them, as an attachment.
        What was divided stays as it is."""
        ...


def prompts_of(encoder: EncoderConfig, media: MediaConfig, vocab_size: int, tokenizer: AnyTokenizer) -> Prompts:
    if media.exists:
        return MediaPrompts(media, tokenizer)
    if not encoder.exists:
        return NO_ENCODER_PROMPTS
    features = read_feature_config(encoder.directory) if encoder.reads_audio else WHISPER_FEATURES
    return EncoderPrompts(encoder, vocab_size, tokenizer, partial(listen, config=features, length=encoder.max_len))

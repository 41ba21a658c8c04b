"""What requests are held to: the model's sizes, and what the engine was started with."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.encoder_config import NO_ENCODER, EncoderConfig
from cadence.config.engine_config import ModelConfig
from cadence.config.media_config import NO_MEDIA, MediaConfig
from cadence.config.pooling import DECODER, PoolingConfig
from cadence.core.grammar import NO_DEFAULTS, GrammarDefaults
from cadence.text.null_tokenizer import AnyTokenizer


@dataclass(frozen=True, slots=True)
class InputLimits:
    vocab_size: int
    max_model_len: int
    max_logprobs: int
    seed: int
    eos_token_ids: frozenset[int]
    structured: GrammarDefaults = NO_DEFAULTS
    adapters: bool = False  # requests may have one
    num_engines: int = 1
    pooling: PoolingConfig = DECODER
    encoder: EncoderConfig = NO_ENCODER
    media: MediaConfig = NO_MEDIA

    @classmethod
    def of(
        cls,
        model: ModelConfig,
        vocab_size: int,
        tokenizer: AnyTokenizer,
        structured: GrammarDefaults = NO_DEFAULTS,
        adapters: bool = False,
        num_engines: int = 1,
        pooling: PoolingConfig = DECODER,
    ) -> InputLimits:
        """What the model's files and its tokenizer each call an end of text counts as one."""
        eos = frozenset(model.hf.eos_token_ids) | tokenizer.eos_token_ids
        return cls(
            vocab_size=vocab_size,
            max_model_len=model.max_model_len,
            max_logprobs=model.max_logprobs,
            seed=model.seed,
            eos_token_ids=eos,
            structured=structured,
            adapters=adapters,
            num_engines=num_engines,
            pooling=pooling,
            encoder=model.encoder,
            media=model.media,
        )

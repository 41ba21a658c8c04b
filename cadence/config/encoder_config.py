"""The encoder of an encoder-decoder model: how much it reads, and how its decoder begins."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cadence.config.context_length import model_context_length
from cadence.config.hf import HFConfig


@dataclass(frozen=True, slots=True)
class EncoderConfig:
    max_len: int = 0  # positions of its output; 0 = the model has no encoder
    mels: int = 0  # of the sound it reads; 0 = it reads text
    begins: tuple[int, ...] = ()  # tokens before the decoder's first own one; () = the model's files name none
    directory: Path = field(default=Path(), compare=False)  # of the model's files
    barred: tuple[tuple[int, ...], ...] = ()  # sequences of tokens that the model's files rule out

    @property
    def reads_audio(self) -> bool:
        return self.mels > 0

    @property
    def exists(self) -> bool:
        return self.max_len > 0


NO_ENCODER = EncoderConfig()


def resolve_encoder(hf: HFConfig) -> EncoderConfig:
    if not hf.get("is_encoder_decoder"):
        return NO_ENCODER
    positions = hf.get("max_source_positions")
    return EncoderConfig(
        max_len=positions or model_context_length(hf),
        mels=hf.get("num_mel_bins") or 0,
        begins=_begins(hf),
        directory=hf.source.parent,
        barred=tuple(map(tuple, _said(hf, "bad_words_ids") or ())),
    )


def _begins(hf: HFConfig) -> tuple[int, ...]:
    """The token that stands for a beginning, and one that always comes first after it, where files name one."""
    named = (_said(hf, "decoder_start_token_id"), _said(hf, "forced_bos_token_id"))
    start, first = (None if token in (None, -1) else int(token) for token in named)
    if start is None:
        return ()
    return (start,) if first is None else (start, first)


def _said(hf: HFConfig, name: str) -> Any:
    """By the generation config, or else by the config."""
    found = hf.generation.get(name)
    return hf.get(name) if found is None else found

"""What the configuration of Qwen2-Audio says of its tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import FieldType, Integer
from cadence.config.files.fields import check_fields, wrong
from cadence.core.model.architectures import MOST_LAYERS

_SIZE = Integer(1, 2**20)
_TYPES: Mapping[str, FieldType] = {
    "encoder_layers": Integer(1, MOST_LAYERS),
    "d_model": _SIZE,
    "encoder_attention_heads": Integer(1, 2**12),
    "encoder_ffn_dim": _SIZE,
    "num_mel_bins": Integer(1, 1024),
    "max_source_positions": Integer(2, 2**16),
}
_USUAL: Mapping[str, Any] = {
    "encoder_layers": 32,
    "d_model": 1280,
    "encoder_attention_heads": 20,
    "encoder_ffn_dim": 5120,
    "num_mel_bins": 128,
    "max_source_positions": 1500,
    "activation_function": "gelu",
}
_SECTION = "audio_config"


@dataclass(frozen=True, slots=True)
class QwenAudio:
    layers: int
    hidden: int
    heads: int
    intermediate: int
    mels: int
    positions: int  # of the longest sound, each of two frames; two positions become a vector

    def heard(self, frames: int) -> tuple[int, int]:
        """-> positions, and vectors that come of them"""
        positions = (frames + 1) // 2
        return positions, positions // 2


def read_qwen_audio(raw: Mapping[str, Any]) -> QwenAudio:
    """raw: config.json"""
    source = Path("config.json")
    section = raw.get(_SECTION) or {}
    if not isinstance(section, Mapping):
        raise wrong(source, _SECTION, "an object", section)
    told = dict(_USUAL) | check_fields(section, _TYPES, source, f"{_SECTION}.")
    if told["activation_function"] != "gelu":
        raise wrong(source, f"{_SECTION}.activation_function", "'gelu'", told["activation_function"])
    return QwenAudio(
        layers=told["encoder_layers"],
        hidden=told["d_model"],
        heads=told["encoder_attention_heads"],
        intermediate=told["encoder_ffn_dim"],
        mels=told["num_mel_bins"],
        positions=told["max_source_positions"],
    )

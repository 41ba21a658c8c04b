"""What the configuration of Qwen2-VL or Qwen2.5-VL says of its tower."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cadence.config.files.field_types import FieldType, Integer, ListOf, Number, String
from cadence.config.files.fields import wrong
from cadence.core.errors import ModelFileError
from cadence.core.model.architectures import MOST_LAYERS

_SIZE, _SMALL = Integer(1, 2**20), Integer(1, 64)
_TYPES: Mapping[str, FieldType] = {
    "depth": Integer(1, MOST_LAYERS),
    "embed_dim": _SIZE,
    "hidden_size": _SIZE,
    "intermediate_size": _SIZE,
    "mlp_ratio": Number(0, 64),
    "num_heads": Integer(1, 2**12),
    "hidden_act": String(),
    "in_channels": Integer(3, 3),
    "patch_size": Integer(1, 1024),
    "spatial_merge_size": _SMALL,
    "temporal_patch_size": _SMALL,
    "tokens_per_second": Integer(1, 2**16),
    "window_size": Integer(1, 2**16),
    "fullatt_block_indexes": ListOf(Integer(0, MOST_LAYERS)),
}
_BOTH = {
    "depth": 32, "num_heads": 16, "in_channels": 3, "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
}  # fmt: skip
_QWEN2 = _BOTH | {"embed_dim": 1280, "mlp_ratio": 4, "hidden_act": "quick_gelu"}
_QWEN25 = _BOTH | {
    "hidden_size": 3584,
    "intermediate_size": 3420,
    "hidden_act": "silu",
    "tokens_per_second": 4,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
}
_WINDOWED = "Qwen2_5_VLForConditionalGeneration"


@dataclass(frozen=True, slots=True)
class QwenVision:
    layers: int
    hidden: int
    heads: int
    intermediate: int
    activation: str
    patch: int  # pixels each way
    merge: int  # patches of a vector, each way
    frames: int  # of a patch
    tokens_per_second: int  # steps of a video's time; 0: each `frames` frames are one
    window: int  # vectors each way; 0: layers have none
    full: frozenset[int]  # layers without windows, where others have them

    @property
    def cell(self) -> int:
        """Pixels of a vector, each way."""
        return self.patch * self.merge


def read_qwen_vision(raw: Mapping[str, Any], architecture: str) -> QwenVision:
    """raw: config.json"""
    section, windowed = raw.get("vision_config") or {}, architecture == _WINDOWED
    if not isinstance(section, Mapping):
        raise _wrong("vision_config", "an object", section)
    section = {**({"in_channels": section["in_chans"]} if "in_chans" in section else {}), **section}
    told = {name: _read(section, name, default) for name, default in (_QWEN25 if windowed else _QWEN2).items()}
    hidden = told["hidden_size"] if windowed else told["embed_dim"]
    if hidden % (4 * told["num_heads"]):
        raise _wrong("vision_config", "sizes of heads that are multiples of 4", f"{hidden} / {told['num_heads']}")
    cell = told["patch_size"] * told["spatial_merge_size"]
    window = told["window_size"] // cell if windowed else 0
    if windowed and not window:
        raise _wrong("vision_config.window_size", f"{cell} pixels or more", told["window_size"])
    return QwenVision(
        layers=told["depth"],
        hidden=hidden,
        heads=told["num_heads"],
        intermediate=told["intermediate_size"] if windowed else int(hidden * told["mlp_ratio"]),
        activation=told["hidden_act"],
        patch=told["patch_size"],
        merge=told["spatial_merge_size"],
        frames=told["temporal_patch_size"],
        tokens_per_second=told["tokens_per_second"] if windowed else 0,
        window=window,
        full=frozenset(told["fullatt_block_indexes"] if windowed else ()),
    )


def _read(section: Mapping[str, Any], name: str, default: Any) -> Any:
    value = section.get(name, default)
    try:
        return _TYPES[name].read(value)
    except (ValueError, OverflowError):
        raise _wrong(f"vision_config.{name}", _TYPES[name].expected, value) from None


def _wrong(name: str, expected: str, found: object) -> ModelFileError:
    return wrong(Path("config.json"), name, expected, found)

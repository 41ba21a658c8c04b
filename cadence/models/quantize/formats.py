"""Formats of compressed-tensors that are written, by the names that its library and vLLM know them by."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    import torch

    from cadence.models.quantize.numbers import Numbers
    from cadence.models.quantize.scale_codes import ScaleCode

_BLOCK = (128, 128)
_SHRUNK = tuple(1.0 - 0.04 * step for step in range(11))  # of the range that covers every entry: 1.00 .. 0.60
_COVERING = (1.0,)
_TOKEN_INT8 = {"num_bits": 8, "type": "int", "strategy": "token", "symmetric": True, "dynamic": True}
_TOKEN_FP8 = {"num_bits": 8, "type": "float", "strategy": "token", "symmetric": True, "dynamic": True}
_GROUP_FP8 = {
    "num_bits": 8, "type": "float", "strategy": "group", "group_size": 128, "symmetric": True, "dynamic": True,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WeightFormat:
    name: str
    layout: str  # as `format` of quantization_config has it
    kind: str  # int | float
    bits: int
    strategy: str  # channel | group | tensor_group | block
    group: int = 0  # columns that share a scale; 0 = all of a row, or a block
    groups: tuple[int, ...] = ()  # sizes that may be asked for
    asked: bool = False  # for this group: no other is taken where it does not divide the columns
    symmetric: bool = True
    inputs: dict[str, Any] | None = None  # what activations are to be rounded to by who multiplies
    ranges: tuple[float, ...] = field(default=_COVERING)  # tried for each cell, parts of the covering one
    pays: bool = False  # whether calibration does

    @property
    def numbers(self) -> Numbers:
        from cadence.models.quantize.numbers import Float4Numbers, Float8Numbers, WholeNumbers  # imports torch

        if self.kind == "int":
            return WholeNumbers(self.bits)
        return Float8Numbers() if self.bits == 8 else Float4Numbers()

    def scale_code(self, dtype: torch.dtype) -> ScaleCode:
        """dtype: of the checkpoint's other tensors, and of scales that have no type of their own"""
        from cadence.models.quantize.scale_codes import E4M3Scales, FloatScales, PowerScales  # imports torch

        if self.layout == "nvfp4-pack-quantized":
            return E4M3Scales()
        return PowerScales() if self.layout == "mxfp4-pack-quantized" else FloatScales(dtype)

    def cell(self, cols: int) -> tuple[int, int]:
        """Rows and columns that share a scale, of a matrix of so many columns."""
        return _BLOCK if self.strategy == "block" else (1, self.group or cols)

    def section(self, left_out: list[str]) -> dict[str, Any]:
        """quantization_config of config.json; left_out: modules that are not quantised"""
        weights = {
            "num_bits": self.bits,
            "type": self.kind,
            "strategy": self.strategy,
            "symmetric": self.symmetric,
            "dynamic": False,
            **({"group_size": self.group} if self.group else {}),
            **({"block_structure": list(_BLOCK)} if self.strategy == "block" else {}),
            **_SCALE_TYPES.get(self.layout, {}),
        }
        group = {
            "targets": ["Linear"],
            "weights": weights,
            "input_activations": self.inputs,
            "output_activations": None,
        }
        return {
            "quant_method": "compressed-tensors",
            "format": self.layout,
            "config_groups": {"group_0": {**group, "format": self.layout}},
            "ignore": left_out,
            "kv_cache_scheme": None,
            "quantization_status": "compressed",
            "global_compression_ratio": None,
        }


_SCALE_TYPES = {
    "nvfp4-pack-quantized": {"scale_dtype": "torch.float8_e4m3fn", "zp_dtype": "torch.float8_e4m3fn"},
    "mxfp4-pack-quantized": {"scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"},
}
_GROUPS = (32, 64, 128, 256)
_PACKED, _FP8 = "pack-quantized", "float-quantized"
_W4 = WeightFormat("W4A16", _PACKED, "int", 4, "group", 128, _GROUPS, ranges=_SHRUNK, pays=True)
FORMATS: dict[str, WeightFormat] = {
    form.name: form
    for form in (
        _W4,
        replace(_W4, name="W4A16_ASYM", symmetric=False),
        WeightFormat("W8A16", _PACKED, "int", 8, "group", 128, _GROUPS),
        WeightFormat("W8A8", "int-quantized", "int", 8, "channel", inputs=_TOKEN_INT8),
        WeightFormat("FP8_DYNAMIC", _FP8, "float", 8, "channel", inputs=_TOKEN_FP8),
        WeightFormat("FP8_BLOCK", _FP8, "float", 8, "block", inputs=_GROUP_FP8),
        WeightFormat("NVFP4A16", "nvfp4-pack-quantized", "float", 4, "tensor_group", 16, ranges=_SHRUNK, pays=True),
        WeightFormat("MXFP4A16", "mxfp4-pack-quantized", "float", 4, "group", 32, ranges=(1.0, 0.5), pays=True),
    )
}
OTHER_NAMES = {"INT4": "W4A16", "INT8": "W8A8", "W8A8_INT8": "W8A8", "FP8": "FP8_DYNAMIC"}


def fitting_group(form: WeightFormat, columns: Iterable[int]) -> WeightFormat:
    """With the largest group, up to the format's own, that divides all of them; as it is where none does."""
    if form.asked:
        return form
    wanted = set(columns)
    fits = [size for size in form.groups if size <= form.group and not any(cols % size for cols in wanted)]
    return replace(form, group=max(fits)) if fits else form


def find_format(name: str, group: int = 0) -> WeightFormat:
    """group: columns that share a scale; 0 = as the format has it, or as `fitting_group` chooses"""
    plain = name.upper().replace("-", "_")
    found = FORMATS.get(OTHER_NAMES.get(plain, plain))
    if found is None:
        raise ConfigError(f"format={name}: known are {', '.join([*FORMATS, *OTHER_NAMES])}", "format")
    if group and group not in (found.groups or (found.group,)):
        may = f"has groups of {' or '.join(map(str, found.groups))} columns" if found.groups else "has its own groups"
        raise ConfigError(f"group_size={group}: {found.name} {may}", "group_size")
    return replace(found, group=group, asked=True) if group else found

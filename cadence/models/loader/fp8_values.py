"""`quantization=fp8` where no kernel multiplies float8: the values that it holds, in a type that is multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cadence.core.errors import WeightsError
from cadence.kernels.interface.matrix import MatrixPacker, PackedMatrix
from cadence.kernels.interface.scaled_numbers import ScaledNumbers

_MOST = 448.0  # of float8 E4M3
_LEAST = 1e-12  # of a scale: rows of zeros stay so


class Fp8ValuesPacker:
    """A `MatrixPacker` around another, which gets values that float8 holds with a float32 scale for each row."""

    keeps_blocks = False
    takes_numbers = False

    def __init__(self, inner: MatrixPacker) -> None:
        self._inner = inner
        self.device = inner.device

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Any | None:
        return None

    def pack_numbers(self, stored: ScaledNumbers) -> Any | None:
        return None

    def pack_values(self, values: torch.Tensor, inner: bool) -> Any:
        return self._inner.pack_values(fp8_values(values), inner)

    def stack(self, parts: Sequence[Any], order: torch.Tensor | None = None) -> PackedMatrix:
        return self._inner.stack(parts, order)


def fp8_values(values: torch.Tensor) -> torch.Tensor:
    """[rows, cols] of a float type -> the same, rounded to float8 times its row's scale, and that to the type"""
    wide = values.float()
    scales = (wide.abs().amax(dim=1, keepdim=True) / _MOST).clamp(min=_LEAST)
    if not bool(torch.isfinite(scales).all()):
        raise WeightsError("weights to quantise must be finite")
    return ((wide / scales).clamp(-_MOST, _MOST).to(torch.float8_e4m3fn).float() * scales).to(values.dtype)

"""`quantization=fp8` on the CPU: blocks of float8, or the values that it holds where no kernel multiplies those."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from cadence.core.errors import WeightsError
from cadence.kernels.interface.matrix import MatrixPacker, PackedMatrix
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.reference.float8_rows import float8_of
from cadence.models.quant.blocks import float8_blocks


class Float8Packer:
    """A `MatrixPacker` around another, which gets float8 with a float32 scale for each row."""

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
        numbers, scales = float8_of(values)
        if not bool(torch.isfinite(scales).all()):
            raise WeightsError("weights to quantise must be finite")
        found = float8_blocks(numbers, scales)
        part = None if found is None else self._inner.pack_blocks(*found, *values.shape)
        return self._inner.pack_values((numbers.float() * scales).to(values.dtype), inner) if part is None else part

    def stack(self, parts: Sequence[Any], order: torch.Tensor | None = None) -> PackedMatrix:
        return self._inner.stack(parts, order)

"""Matrices of one number a byte, int8 or float8, with scales: of all, of each row, of groups of columns, of blocks.

weight             int8 or float8 [rows, cols]
weight_scale       or weight_scale_inv: what values are multiplied by
weight_zero_point  int8, of the shape of scales; of int8 alone, and not where symmetric
"""

from __future__ import annotations

import torch

from cadence.config.files.stored_as import StoredAs
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.models.quant.blocks import float8_blocks, signed_blocks
from cadence.models.quant.integers import SCALES
from cadence.models.quant.matrix import Blocks, StoredMatrix
from cadence.models.quant.tensors import ModuleTensors

BYTES = ("I8", "F8_E4M3")
_CHUNK = 1 << 22  # elements at once; bounds temporaries


class ScaledBytes(StoredMatrix):
    def __init__(self, tensors: ModuleTensors, stored: StoredAs) -> None:
        self._tensors = tensors
        self.shape = rows, cols = tensors.matrix_shape("weight", BYTES)
        self._scale = "weight_scale_inv" if "weight_scale_inv" in tensors else "weight_scale"
        shapes = _scale_shapes(rows, cols, stored)
        tensors.check(self._scale, SCALES, *shapes)
        self._cell = _cell(tensors.shape(self._scale), (rows, cols), stored)
        self._has_zeros = "weight_zero_point" in tensors and tensors.stored_type("weight") == "I8"
        if self._has_zeros:
            tensors.check("weight_zero_point", ("I8",), tensors.shape(self._scale))
        elif not stored.symmetric and tensors.stored_type("weight") == "I8":
            tensors.load("weight_zero_point")  # says that it is missing

    def values(self) -> torch.Tensor:
        """In the type of the scales."""
        rows, cols = self.shape
        weight, scales, zeros = self._tensors.load("weight"), self._grid(), self._zeros()
        out = torch.empty(self.shape, dtype=scales.dtype)
        height = self._cell[0]
        step = max(1, _CHUNK // cols)
        for start in range(0, rows, step):
            lines = torch.arange(start, min(start + step, rows)) // height
            part = weight[start : start + step].to(scales.dtype)
            if zeros is not None:
                part = part - self._along(zeros[lines]).to(scales.dtype)
            torch.mul(part, self._along(scales[lines]), out=out[start : start + step])
        return out

    def blocks(self) -> Blocks | None:
        found = self.numbers()
        if found is None:
            return None
        eight = found.numbers.dtype is torch.int8
        return signed_blocks(found.numbers, found.scales) if eight else float8_blocks(found.numbers, found.scales)

    def numbers(self) -> ScaledNumbers | None:
        if self._has_zeros or self.shape[1] % self._cell[1]:
            return None
        lines = torch.arange(self.shape[0]) // self._cell[0]
        return ScaledNumbers(self._tensors.load("weight"), self._grid()[lines])

    def _grid(self) -> torch.Tensor:
        """[blocks of rows, blocks of columns]"""
        rows, cols = self.shape
        found = self._tensors.finite(self._scale)
        return found.reshape(-(-rows // self._cell[0]), -(-cols // self._cell[1]))

    def _zeros(self) -> torch.Tensor | None:
        return self._tensors.load("weight_zero_point").view(self._grid().shape) if self._has_zeros else None

    def _along(self, lines: torch.Tensor) -> torch.Tensor:
        """[n, blocks of columns] -> [n, cols]"""
        return lines.repeat_interleave(self._cell[1], dim=1)[:, : self.shape[1]]


def _scale_shapes(rows: int, cols: int, stored: StoredAs) -> list[tuple[int, ...]]:
    if stored.block != (0, 0):
        return [(-(-rows // stored.block[0]), -(-cols // stored.block[1]))]
    if stored.group:
        return [(rows, cols // stored.group)] if cols % stored.group == 0 else [(rows, -1)]
    each: list[tuple[int, ...]] = [(rows, 1), (rows,)]
    return [(), (1,), (1, 1), *each] if stored.per_tensor else each


def _cell(shape: tuple[int, ...], whole: tuple[int, int], stored: StoredAs) -> tuple[int, int]:
    """Rows and columns that have one scale, by the shape of the scales."""
    if stored.block != (0, 0):
        return stored.block
    if stored.group:
        return 1, stored.group
    return (1 if shape and shape[0] == whole[0] else whole[0]), whole[1]

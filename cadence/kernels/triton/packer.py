"""Matrices of a model in the form the GPU multiplies them in, made tensor by tensor while they load.

| method | a matrix becomes |
|---|---|
| none | a tensor of the model's type |
| gguf, checkpoint | the numbers of its file, in 4 or 8 bits; what no kernel reads is widened to the model's type |
| fp8 | float8_e4m3fn with a scale for each row; of 65 rows of activations and more these are rounded so, too |
| int8 | int8 with a scale for each row |
| int4 | four bits with a scale for 128 columns |

With the last three, what turns vectors into tokens keeps 8 bits, and what turns tokens into vectors its own type, where
they are not the same matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.scaled_numbers import ScaledNumbers
from cadence.kernels.triton.checkpoint_numbers import of_numbers
from cadence.kernels.triton.few_bits import SPAN, Stored, as_fp8, as_int4, as_int8, can_stack, of_blocks, stacked
from cadence.kernels.triton.few_bits_matrix import FewBitsMatrix, PickedMatrix, WideMatrix

Part = Stored | torch.Tensor


class GpuPacker:
    """A `MatrixPacker`."""

    def __init__(
        self, ops: Ops, method: str, dtype: torch.dtype, device: torch.device, kind: tuple[bool, bool]
    ) -> None:
        """dtype: of activations. kind: (deterministic, PDL)"""
        self.keeps_blocks = method in ("gguf", "checkpoint")
        self.takes_numbers = method == "checkpoint"
        self._ops = ops
        self._method = method
        self._dtype = dtype
        self.device = device
        self._kind = kind

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Part | None:
        return of_blocks(kind, blocks.to(self.device), rows, cols)

    def pack_numbers(self, stored: ScaledNumbers) -> Part | None:
        return of_numbers(stored, self.device)

    def pack_values(self, values: torch.Tensor, inner: bool) -> Part:
        values = values.to(self.device).contiguous()  # some files have them transposed
        if self.keeps_blocks or self._method == "none":
            return values.to(self._dtype)
        if self._method == "fp8":
            return as_fp8(values)
        return as_int4(values) if inner and self._method == "int4" and values.shape[1] % SPAN == 0 else as_int8(values)

    def stack(self, parts: Sequence[Part], order: torch.Tensor | None = None) -> PackedMatrix:
        matrix = self._stacked(parts)
        return matrix if order is None else PickedMatrix(matrix, order.to(self.device, torch.int64))

    def _stacked(self, parts: Sequence[Part]) -> PackedMatrix:
        few = [part for part in parts if isinstance(part, Stored)]
        if len(few) == len(parts) and can_stack(few):
            return FewBitsMatrix(stacked(few), self._dtype, *self._kind)
        dense = [part.widened().to(self._dtype) if isinstance(part, Stored) else part for part in parts]
        return WideMatrix(torch.cat(dense) if len(dense) > 1 else dense[0], self._ops)

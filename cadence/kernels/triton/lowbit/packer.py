"""Matrices of a model in the form the GPU multiplies them in, made tensor by tensor while they load.

| method | a matrix becomes |
|---|---|
| none | a tensor of the model's type |
| gguf | the blocks of its file |
| checkpoint | the numbers of its files, in 4 or 8 bits or fp8; what no kernel reads is widened to the model's type |
| fp8 | float8_e4m3fn with a scale for each row; activations of more than one row are rounded so, too |
| int8 | int8 with a scale for each row; activations as above |
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
from cadence.kernels.triton.lowbit.block_matrix import BlockMatrix
from cadence.kernels.triton.lowbit.block_planes import Planes, planes_of, stacked_planes
from cadence.kernels.triton.lowbit.checkpoint_numbers import of_numbers
from cadence.kernels.triton.lowbit.few_bits import SPAN, Stored, as_fp8, as_int4, as_int8, of_blocks, stacked
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix, PickedMatrix, WideMatrix
from cadence.kernels.triton.lowbit.joined_matrix import JoinedMatrix

Part = Stored | Planes | torch.Tensor


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
        self._deterministic, self._pdl = kind

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Part | None:
        on_device = blocks.to(self.device)
        found = planes_of(kind, on_device, rows, cols)
        return of_blocks(kind, on_device, rows, cols) if found is None else found

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
        """Those of one kind that follow each other become one matrix."""
        runs: list[list[Part]] = []
        for part in parts:
            if runs and _kind(runs[-1][0]) == _kind(part):
                runs[-1].append(part)
            else:
                runs.append([part])
        matrices = [self._matrix(run) for run in runs]
        return matrices[0] if len(matrices) == 1 else JoinedMatrix(matrices)

    def _matrix(self, parts: list[Part]) -> PackedMatrix:
        """Of parts of one kind."""
        if few := [part for part in parts if isinstance(part, Stored)]:
            return FewBitsMatrix(stacked(few), self._dtype, fixed=self._deterministic, pdl=self._pdl)
        if blocks := [part for part in parts if isinstance(part, Planes)]:
            return BlockMatrix(stacked_planes(blocks), self._dtype, fixed=self._deterministic, pdl=self._pdl)
        dense = [part for part in parts if isinstance(part, torch.Tensor)]
        return WideMatrix(torch.cat(dense) if len(dense) > 1 else dense[0], self._ops)


def _kind(part: Part) -> tuple[object, ...]:
    if isinstance(part, Stored):
        return (part.values.dtype, part.group, part.weight_only, *part.table.words.tolist())
    return (part.kind,) if isinstance(part, Planes) else ()

"""The matrices of all experts of a layer in one stretch of memory each, so that one launch serves all of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import triton

from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.experts.expert_products import expert_blocks, expert_few_bits, expert_matmul, expert_spans
from cadence.kernels.triton.experts.expert_tiles import TILE_ROWS, ExpertTiles
from cadence.kernels.triton.lowbit.block_launch import constants
from cadence.kernels.triton.lowbit.block_matrix import BlockMatrix
from cadence.kernels.triton.lowbit.block_planes import Planes, stacked_planes
from cadence.kernels.triton.lowbit.few_bits import Stored, stacked
from cadence.kernels.triton.lowbit.few_bits_matrix import FewBitsMatrix
from cadence.kernels.triton.lowbit.span_launch import KINDS, planes_of_spans, tile_constants

_OUTPUTS, _BLOCK_OUTPUTS = 64, 32  # of a tile of few bits, and of blocks


class MatrixStack(Protocol):
    count: int  # of experts

    def held(self) -> Sequence[object]:
        """As that of a `PackedMatrix`."""
        ...

    def product(self, x: torch.Tensor, tiles: ExpertTiles, per_line: int) -> torch.Tensor:
        """x [pairs / per_line, in] -> [pairs, out]; of pairs in no tile, anything."""
        ...


class DenseStack:
    """Tensors."""

    def __init__(self, weight: torch.Tensor) -> None:
        self.count = weight.shape[0]
        self._weight = weight  # [experts, out, in]

    def held(self) -> Sequence[object]:
        return (self._weight,)

    def product(self, x: torch.Tensor, tiles: ExpertTiles, per_line: int) -> torch.Tensor:
        _, outputs, width = self._weight.shape
        out = torch.empty((tiles.num_pairs, outputs), dtype=x.dtype, device=x.device)
        precise = x.dtype is torch.float32
        block = 32 if precise else 64
        expert_matmul[(tiles.experts.shape[0], triton.cdiv(outputs, block))](
            out, x, self._weight, tiles.pairs, tiles.experts, tiles.num_pairs, outputs, x.stride(0),
            WIDTH=width, PER_LINE=per_line, ROWS=TILE_ROWS, OUTPUTS=block, COLUMNS=32 if precise else 64,
            PRECISION="ieee" if precise else "tf32", num_warps=4, num_stages=3,
        )  # fmt: skip
        return out


class FewBitsStack:
    """Rows of 4 or 8 bits. Activations meet them as they are."""

    def __init__(self, parts: Sequence[Stored]) -> None:
        """parts: of each expert, of one kind and size; the smallest of their groups divides the others"""
        self.count = len(parts)
        self._outputs = parts[0].rows
        group = min(part.group for part in parts)
        whole = stacked([part.regrouped(group) for part in parts])
        self._weight = whole.by_groups() if whole.is_four else whole

    def held(self) -> Sequence[object]:
        return (self._weight,)

    def product(self, x: torch.Tensor, tiles: ExpertTiles, per_line: int) -> torch.Tensor:
        weight, outputs = self._weight, self._outputs
        out = torch.empty((tiles.num_pairs, outputs), dtype=x.dtype, device=x.device)
        small = weight.is_four and weight.group % 128 != 0  # a tile has one scale a row, or two
        columns = 64 if small else 128
        deep = not small and weight.group >= 128 and x.dtype is not torch.float32  # else scales take the room
        expert_few_bits[(tiles.experts.shape[0], triton.cdiv(outputs, _OUTPUTS))](
            out, x, weight.values.view(torch.int16) if weight.is_four else weight.values, weight.scales,
            weight.zeros if len(weight.zeros) else weight.scales, tiles.pairs, tiles.experts, tiles.num_pairs,
            outputs, x.stride(0), *weight.scales.stride(), weight.table.words if weight.table.exists else x,
            WIDTH=weight.cols, PER_LINE=per_line, ROWS=TILE_ROWS, OUTPUTS=_OUTPUTS, COLUMNS=columns,
            GROUP=weight.group, FOUR=weight.is_four, ZEROS=len(weight.zeros) > 0, LOOKUP=weight.table.lookup(x.dtype),
            EVEN=outputs % _OUTPUTS == 0 and weight.cols % columns == 0,
            QUICK=x.element_size() == 2 and not is_interpreted(),
            PRECISION="ieee" if x.dtype is torch.float32 else "tf32", num_warps=4, num_stages=3 if deep else 2,
        )  # fmt: skip
        return out


class BlockStack:
    """Blocks of a file, as they are or in planes of words."""

    def __init__(self, parts: Sequence[Planes]) -> None:
        """parts: of each expert, of one kind and size"""
        self.count = len(parts)
        self._outputs = parts[0].rows
        whole = stacked_planes(list(parts))
        self._in_words = whole.kind in KINDS
        self._planes = planes_of_spans(whole) if self._in_words else [*whole.four, whole.table]
        spans = {"SPANS": 4, "EVEN": self._outputs % _BLOCK_OUTPUTS == 0 and whole.cols % 256 == 0}
        own = tile_constants(whole) | spans if self._in_words else constants(whole) | {"COLUMNS": 128}
        self._constants = own | {"ROWS": TILE_ROWS, "OUTPUTS": _BLOCK_OUTPUTS, "num_warps": 4, "num_stages": 2}

    def held(self) -> Sequence[object]:
        return self._planes, self._constants

    def product(self, x: torch.Tensor, tiles: ExpertTiles, per_line: int) -> torch.Tensor:
        outputs = self._outputs
        out = torch.empty((tiles.num_pairs, outputs), dtype=x.dtype, device=x.device)
        kernel = expert_spans if self._in_words else expert_blocks
        kernel[(tiles.experts.shape[0], triton.cdiv(outputs, _BLOCK_OUTPUTS))](
            out, x, *self._planes, tiles.pairs, tiles.experts, tiles.num_pairs, outputs, x.stride(0),
            **self._constants, PER_LINE=per_line, PRECISION="ieee" if x.dtype is torch.float32 else "tf32",
        )  # fmt: skip
        return out


def stacked_experts(matrices: Sequence[PackedMatrix], dtype: torch.dtype) -> MatrixStack:
    """Of one size. What is not of one kind becomes tensors of this type."""
    stored = [matrix.stored for matrix in matrices if isinstance(matrix, FewBitsMatrix)]
    if len(stored) == len(matrices) and _go_together(stored):
        return FewBitsStack(stored)
    planes = [matrix.planes for matrix in matrices if isinstance(matrix, BlockMatrix)]
    if len(planes) == len(matrices) and len({part.kind for part in planes}) == 1:
        return BlockStack(planes)
    return DenseStack(torch.stack([matrix.values(0, matrix.rows).to(dtype) for matrix in matrices]))


def _go_together(parts: Sequence[Stored]) -> bool:
    group = min(part.group for part in parts)
    kinds = {(part.values.dtype, *part.table.words.tolist()) for part in parts}
    return len(kinds) == 1 and not any(part.group % group for part in parts)

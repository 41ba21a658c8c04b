"""Matrices of a model on a GPU that are the blocks of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
import torch.nn.functional as F

from cadence.kernels.interface.matrix import ComposedMatrix, Norm, StreamOps
from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.linear.few_rows import FewTile
from cadence.kernels.triton.linear.gemv import Entry
from cadence.kernels.triton.lowbit.block_launch import Blocks
from cadence.kernels.triton.lowbit.block_planes import Planes
from cadence.kernels.triton.lowbit.span_launch import KINDS, Spans

_MOST_TERMS = 4  # of a sum over columns that is split
_MOST_WIDENED = 1 << 27  # elements at once


class BlockProducts(Protocol):
    """The kernels for a matrix of a type."""

    @property
    def most_rows(self) -> int:
        """For more a library multiplies by the widened matrix."""

    @property
    def splits_alone(self) -> bool:
        """Whether splitting a sum over columns pays where its terms are then added up by a kernel of its own."""

    def suits_row(self, dtype: torch.dtype) -> bool:
        """Whether a row of numbers of this type that is alone is multiplied by `one_row`."""

    def rows_of(self, first: int, count: int) -> BlockProducts:
        """The same for some rows of the matrix."""

    def values(self, dtype: torch.dtype, ids: torch.Tensor | None = None, factor: float = 1.0) -> torch.Tensor:
        """[rows, cols], or of the rows `ids` [T], times a factor: [T, cols]"""

    def one_row(self, x: torch.Tensor, bias: torch.Tensor | None, entry: Entry | None, gate: str, pdl: bool) -> Pair:
        """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""

    def choose(self, rows: int, dtype: torch.dtype, most_terms: int) -> FewTile:
        """The same steps through the columns for any number of rows."""

    def some_rows(self, x: torch.Tensor, bias: torch.Tensor | None, tile: FewTile, pdl: bool) -> torch.Tensor:
        """x [T, in] -> [T, out], or [terms, T, out], which are to be added up"""


def products_of(weight: Planes) -> BlockProducts:
    return Spans(weight) if weight.kind in KINDS else Blocks(weight)


class BlockMatrix(ComposedMatrix):
    """A `PackedMatrix`. `fixed`: a row's bits do not depend on the rows beside it, nor on how many there are."""

    def __init__(self, weight: Planes, dtype: torch.dtype, fixed: bool, pdl: bool) -> None:
        """dtype: of activations"""
        self.rows, self.cols = weight.rows, weight.cols
        self._weight = weight
        self._products = products_of(weight)
        self._dtype = dtype
        self._fixed = fixed
        self._pdl = pdl

    @property
    def planes(self) -> Planes:
        return self._weight

    def held(self) -> Sequence[object]:
        return self._weight, self._products

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=False)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=True)

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None, splits: bool) -> torch.Tensor:
        if self._suits_one(x):
            return self._products.one_row(x, bias, None, "", self._pdl)[0]
        if x.shape[0] <= self._products.most_rows or self._fixed:
            may_split = (splits or self._products.splits_alone) and not self._fixed
            tile = self._products.choose(x.shape[0], x.dtype, _MOST_TERMS if may_split else 1)
            out = self._products.some_rows(x, bias, tile, self._pdl)
            return out if splits or tile.terms == 1 else out.sum(dim=0)
        return self._widened(x, None if bias is None else bias.to(x.dtype))

    def _widened(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """By as many rows of the matrix at a time as are widened at once."""
        step = max(1, _MOST_WIDENED // self.cols)
        if step >= self.rows:
            return F.linear(x, self._products.values(x.dtype), bias)
        out = torch.empty((x.shape[0], self.rows), dtype=x.dtype, device=x.device)
        for first in range(0, self.rows, step):
            some = slice(first, first + step)
            part = self._products.rows_of(first, step).values(x.dtype)
            out[:, some] = F.linear(x, part, None if bias is None else bias[some])
        return out

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x, None)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        return self._products.values(self._dtype, ids, scale)

    def values(self, first: int, count: int) -> torch.Tensor:
        return self._products.rows_of(first, count).values(torch.float32)

    def add_norm_linear(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, ops: StreamOps) -> Pair:
        if self._suits_one(stream[1]):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return self._products.one_row(stream[0], bias, entry, "", self._pdl)
        return super().add_norm_linear(stream, norm, bias, ops)

    def add_norm_gated(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, gelu: bool, ops: StreamOps) -> Pair:
        if self._suits_one(stream[1]):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return self._products.one_row(stream[0], bias, entry, "gelu" if gelu else "silu", self._pdl)
        return super().add_norm_gated(stream, norm, bias, gelu, ops)

    def _suits_one(self, x: torch.Tensor) -> bool:
        return x.shape[0] == 1 and not self._fixed and self._products.suits_row(x.dtype)

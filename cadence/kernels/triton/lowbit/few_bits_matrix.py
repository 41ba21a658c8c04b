"""Matrices of a model on a GPU that hold few bits, and which kernel multiplies them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F

from cadence.device.torch_private import scaled_matmul
from cadence.kernels.interface.matrix import ComposedMatrix, Norm, PackedMatrix, StreamOps
from cadence.kernels.interface.ops import Ops, Pair
from cadence.kernels.triton.linear.gemv import Entry, few_tokens
from cadence.kernels.triton.lowbit.block_launch import Blocks
from cadence.kernels.triton.lowbit.block_planes import planes_of_bytes
from cadence.kernels.triton.lowbit.eight_rows import choose_eight, linear_eight
from cadence.kernels.triton.lowbit.few_bits import Stored
from cadence.kernels.triton.lowbit.few_bits_gemv import one_token
from cadence.kernels.triton.lowbit.few_bits_rows import widened
from cadence.kernels.triton.lowbit.few_bits_spans import choose_small_groups, goes_by_spans, linear_spans
from cadence.kernels.triton.lowbit.few_bits_wide import MANY_OUTPUTS, choose_wide, linear_wide
from cadence.kernels.triton.lowbit.quantized_rows import normed_rows, quantized_rows

_BLOCK = 128  # columns with one scale, of bytes that a kernel for one row reads
_MOST_WIDE, _MOST_TALL = 64, 128  # rows; for more a library multiplies by the widened matrix
_MOST_TERMS = 8  # of a sum over columns that is split
_WORTH_A_SUM = 4  # terms from which on a split pays that must be added up by a kernel of its own
_MOST_FP8 = 64  # rows of our fp8 product; for more a library's is faster, where rows of the matrix have one scale


class FewBitsMatrix(ComposedMatrix):
    """A `PackedMatrix`. `fixed`: a row's bits do not depend on the rows beside it, nor on how many there are."""

    def __init__(self, stored: Stored, dtype: torch.dtype, fixed: bool, pdl: bool) -> None:
        """dtype: of activations"""
        self.rows, self.cols = stored.rows, stored.cols
        self._by_spans = goes_by_spans(stored)
        self._stored = stored = stored.by_groups() if stored.is_four and not self._by_spans else stored
        self._dtype = dtype
        self._fixed = fixed
        self._pdl = pdl
        by_rows = stored.group == stored.cols
        self._row_scales = stored.scales.view(-1) if by_rows else stored.scales[:0, 0]
        has_bytes = not stored.is_four and not stored.weight_only and dtype is torch.bfloat16
        self._rounds = has_bytes and choose_eight(1, stored, False, fixed) is not None  # activations to eight bits
        in_blocks = not stored.is_four and stored.group == _BLOCK
        self._blocks = Blocks(planes_of_bytes(stored.values, stored.scales)) if in_blocks else None  # for a row alone
        in_fours = stored.is_four and stored.group % 128 == 0 and stored.rows % 256 == 0
        self._has_tall_tile = self._by_spans or in_fours
        self._is_fp8 = stored.values.dtype is torch.float8_e4m3fn

    @property
    def stored(self) -> Stored:
        return self._stored

    def held(self) -> Sequence[object]:
        return self._stored, self._row_scales, self._blocks

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=False)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=True)

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None, splits: bool) -> torch.Tensor:
        if self._suits_one(x):
            return self._one(x, bias, None, "")[0]
        if self._rounds:
            return self._by_eight(quantized_rows(x, self._stored.values.dtype, self._pdl), bias, splits)
        if x.shape[0] <= self._most_wide(splits) or self._fixed:
            return self._wide(x, bias, splits)
        return F.linear(x, widened(self._stored, x.dtype), None if bias is None else bias.to(x.dtype))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x, None)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        at, stored = ids.long(), self._stored
        zeros = stored.zeros[at] if len(stored.zeros) else stored.zeros
        picked = replace(stored, values=stored.values[at], scales=stored.scales[at], zeros=zeros)
        return (picked.widened() * scale).to(self._dtype)

    def values(self, first: int, count: int) -> torch.Tensor:
        return self._stored.rows_of(first, count).widened()

    def add_norm_linear(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, ops: StreamOps) -> Pair:
        if self._suits_one(stream[1]):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return self._one(stream[0], bias, entry, "")
        if self._rounds:
            quants, total = normed_rows(stream, norm, self._stored.values.dtype, self._pdl)
            return self._by_eight(quants, bias, splits=False), total
        return super().add_norm_linear(stream, norm, bias, ops)

    def add_norm_gated(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, gelu: bool, ops: StreamOps) -> Pair:
        if self._suits_one(stream[1]):
            entry = Entry(residual=stream[1], norm_weight=norm[0], eps=norm[1])
            return self._one(stream[0], bias, entry, "gelu" if gelu else "silu")
        return super().add_norm_gated(stream, norm, bias, gelu, ops)

    def takes_gate(self, rows: int) -> bool:
        return self._rounds and not self._takes_one(rows)

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, terms: bool, ops: StreamOps
    ) -> torch.Tensor:
        if not self.takes_gate(x.shape[0]):
            return super().gated(x, bias, gelu, terms, ops)
        quants = quantized_rows(x, self._stored.values.dtype, self._pdl, "gelu" if gelu else "silu")
        return self._by_eight(quants, bias, splits=terms)

    def _suits_one(self, x: torch.Tensor) -> bool:
        return self._takes_one(x.shape[0])

    def _takes_one(self, rows: int) -> bool:
        known = self._stored.is_four or len(self._row_scales) > 0 or self._blocks is not None
        return rows == 1 and not self._fixed and known

    def _one(self, x: torch.Tensor, bias: torch.Tensor | None, entry: Entry | None, gate: str) -> Pair:
        if self._stored.is_four:
            return one_token(x, self._stored, bias, entry, gate, self._pdl)
        if self._blocks is not None:
            return self._blocks.one_row(x, bias, entry, gate, self._pdl)
        return few_tokens(x, self._stored.values, bias, entry, gate, self._pdl, scales=self._row_scales)

    def _most_wide(self, splits: bool) -> int:
        """Without a split a matrix of few outputs keeps too few programs busy."""
        return _MOST_TALL if self._has_tall_tile and (splits or self.rows >= MANY_OUTPUTS) else _MOST_WIDE

    def _wide(self, x: torch.Tensor, bias: torch.Tensor | None, splits: bool) -> torch.Tensor:
        choose, linear = (choose_small_groups, linear_spans) if self._by_spans else (choose_wide, linear_wide)
        tile = choose(x.shape[0], self._stored, x.dtype, 1 if self._fixed else _MOST_TERMS)
        if not splits and tile.terms < _WORTH_A_SUM:
            tile = replace(tile, terms=1)
        out = linear(x, self._stored, bias, self._pdl, tile)
        return out if splits or tile.terms == 1 else out.sum(dim=0)

    def _by_eight(self, quants: Pair, bias: torch.Tensor | None, splits: bool) -> torch.Tensor:
        """quants: rows of x in the matrix's type, and their scales"""
        rows = quants[0].shape[0]
        if self._is_fp8 and len(self._row_scales) and rows > _MOST_FP8 and not self._fixed:
            return self._scaled(quants, bias)
        tile = choose_eight(rows, self._stored, splits, self._fixed)
        assert tile is not None
        return linear_eight(quants, self._stored, bias, self._dtype, tile, self._pdl)

    def _scaled(self, quants: Pair, bias: torch.Tensor | None) -> torch.Tensor:
        x, scales = quants
        out = scaled_matmul(x, self._stored.values.t(), scales, self._row_scales.view(1, -1), self._dtype)
        return out if bias is None else out.add_(bias)


class WideMatrix(ComposedMatrix):
    """A `PackedMatrix` that is a tensor: what a model does not quantise."""

    def __init__(self, values: torch.Tensor, ops: Ops) -> None:
        self.rows, self.cols = values.shape
        self._values = values
        self._ops = ops

    def held(self) -> Sequence[object]:
        return (self._values,)

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._ops.linear(x, self._values, None if bias is None else bias.to(x.dtype))

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.logits(x, self._values)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        return self._ops.embed(ids, self._values, scale)

    def values(self, first: int, count: int) -> torch.Tensor:
        return self._values[first : first + count].float()


class PickedMatrix(ComposedMatrix):
    """A `PackedMatrix` around another, whose column j is column order[j] of this one."""

    def __init__(self, matrix: PackedMatrix, order: torch.Tensor) -> None:
        """order [cols] int64"""
        self.rows, self.cols = matrix.rows, matrix.cols
        self._matrix = matrix
        self._order = order
        self._back = torch.argsort(order)

    def held(self) -> Sequence[object]:
        return self._matrix, self._order, self._back

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._matrix.linear(x.index_select(1, self._order), bias)

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self._matrix.logits(x.index_select(1, self._order))

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        return self._matrix.lookup(ids, scale).index_select(1, self._back)

    def values(self, first: int, count: int) -> torch.Tensor:
        return self._matrix.values(first, count).index_select(1, self._back)

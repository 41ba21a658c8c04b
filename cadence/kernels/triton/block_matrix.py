"""Matrices of a model on a GPU that are the blocks of a file, and which kernel multiplies them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
import triton

from cadence.kernels.interface.matrix import ComposedMatrix, Norm
from cadence.kernels.interface.ops import Ops, Pair
from cadence.kernels.triton import block_decoders as blocks
from cadence.kernels.triton import grid_decoders as grids
from cadence.kernels.triton.block_planes import Planes
from cadence.kernels.triton.block_products import block_gemv, block_rows, block_values
from cadence.kernels.triton.few_bits_wide import MANY_OUTPUTS
from cadence.kernels.triton.few_rows import FewTile, in_terms
from cadence.kernels.triton.gemv import Entry
from cadence.kernels.triton.span_launch import KINDS, choose_spans, has_four, some_spans, span_row, widened_spans

_MOST_ROWS, _MOST_SPAN_ROWS = 64, 128  # for more a library multiplies by the widened matrix; spans: of many outputs
_MOST_TERMS = 4  # of a sum over columns that is split
_MOST_WIDENED = 1 << 27  # elements at once
_PROCESSORS = 132  # of the GPU the choices were made for
_COLUMNS = 128  # a step of `block_rows`
_GEMV_COLUMNS, _GEMV_ROWS = 1024, 4

# Of types that are not in planes of words.
_DECODERS: dict[str, tuple[Any, Any]] = {
    "TQ1_0": (blocks.tq1_0, blocks.one_scale),
    "TQ2_0": (blocks.tq2_0, blocks.one_scale),
    "IQ2_XXS": (grids.iq2_xxs, grids.iq2_xxs_scales),
    "IQ2_XS": (grids.iq2_xs, grids.iq2_xs_scales),
    "IQ2_S": (grids.iq2_s, grids.iq2_s_scales),
    "IQ3_XXS": (grids.iq3_xxs, grids.iq3_xxs_scales),
    "IQ3_S": (grids.iq3_s, grids.iq3_s_scales),
    "IQ1_S": (grids.iq1_s, grids.iq1_s_scales),
    "IQ1_M": (grids.iq1_m, grids.iq1_m_scales),
    "BYTES": (blocks.bytes_of_128, blocks.one_scale),
}


def constants(weight: Planes) -> dict[str, Any]:
    """What kernels must know of a type."""
    numbers, scales = _DECODERS[weight.kind]
    form = weight.form
    return {
        "WIDTH": weight.cols, "BLOCK": form.block, "GROUP": form.group, "SHIFTS": form.shifts,
        "NUMBERS": numbers, "SCALES": scales,
    }  # fmt: skip


def values(weight: Planes, dtype: torch.dtype, ids: torch.Tensor | None = None, factor: float = 1.0) -> torch.Tensor:
    """[rows, cols], or of the rows `ids` [T], times a factor: [T, cols]"""
    if weight.kind in KINDS:
        return widened_spans(weight, dtype, ids, factor)
    first = weight.planes[0]
    rows = weight.rows if ids is None else ids.shape[0]
    out = torch.empty((rows, weight.cols), dtype=dtype, device=first.device)
    columns = min(2048, triton.next_power_of_2(weight.cols))
    block_values[(rows, triton.cdiv(weight.cols, columns))](
        out, first if ids is None else ids, *weight.four, weight.table, float(factor),
        **constants(weight), COLUMNS=columns, PICKED=ids is not None, num_warps=4,
    )  # fmt: skip
    return out


def one_row(
    x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, entry: Entry | None, gate: str, pdl: bool
) -> Pair:
    """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
    if weight.kind in KINDS:
        return span_row(x, weight, bias, entry, gate, pdl)
    x = x.contiguous()
    outputs = weight.rows // 2 if gate else weight.rows
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = x if entry is None else torch.empty_like(x)
    residual, norm, eps = (x, x, 0.0) if entry is None else (entry.residual, entry.norm_weight, entry.eps)
    columns = min(_GEMV_COLUMNS, triton.next_power_of_2(weight.cols))
    block_gemv[(triton.cdiv(outputs, _GEMV_ROWS // 2 if gate else _GEMV_ROWS),)](
        out, total, x, residual, norm, *weight.four, weight.table, x if bias is None else bias, eps, outputs,
        **constants(weight), ROWS=_GEMV_ROWS, COLUMNS=columns, NORM=entry is not None, GATE=gate,
        BIAS=bias is not None, PDL=pdl, num_warps=4, launch_pdl=pdl,
    )  # fmt: skip
    return out, total


def choose_rows(rows: int, weight: Planes, dtype: torch.dtype, splits: bool) -> FewTile:
    """The same steps through the columns for any number of rows. splits: sums may be left in terms"""
    most_terms = _MOST_TERMS if splits else 1
    if weight.kind in KINDS:
        return choose_spans(rows, weight.rows, has_four(weight), dtype, most_terms, weight.cols)
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    outputs = 64 if weight.rows >= 64 * _PROCESSORS else 32
    return in_terms(FewTile(tall, outputs, _COLUMNS, 4, 2), rows, weight.rows, weight.cols, most_terms)


def some_rows(x: torch.Tensor, weight: Planes, bias: torch.Tensor | None, tile: FewTile, pdl: bool) -> torch.Tensor:
    """x [T, in] -> [T, out], or [terms, T, out], which are to be added up"""
    if weight.kind in KINDS:
        return some_spans(x, weight, bias, tile, pdl)
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], weight.rows
    size = (rows, outputs) if tile.terms == 1 else (tile.terms, rows, outputs)
    out = torch.empty(size, dtype=x.dtype, device=x.device)
    block_rows[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), tile.terms)](
        out, x, *weight.four, weight.table, x if bias is None else bias, rows, outputs, x.stride(0),
        **constants(weight), ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, TERMS=tile.terms,
        EVEN=weight.cols % (tile.terms * tile.columns) == 0, BIAS=bias is not None,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out


class BlockMatrix(ComposedMatrix):
    """A `PackedMatrix`. `fixed`: a row's bits do not depend on the rows beside it, nor on how many there are."""

    def __init__(self, weight: Planes, dtype: torch.dtype, fixed: bool, pdl: bool) -> None:
        """dtype: of activations"""
        self.rows, self.cols = weight.rows, weight.cols
        self._weight = weight
        self._dtype = dtype
        self._fixed = fixed
        self._pdl = pdl
        tall = weight.kind in KINDS and weight.rows >= MANY_OUTPUTS
        self._most_rows = _MOST_SPAN_ROWS if tall else _MOST_ROWS

    @property
    def planes(self) -> Planes:
        return self._weight

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=False)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self._product(x, bias, splits=True)

    def _product(self, x: torch.Tensor, bias: torch.Tensor | None, splits: bool) -> torch.Tensor:
        if self._suits_one(x):
            return one_row(x, self._weight, bias, None, "", self._pdl)[0]
        if x.shape[0] <= self._most_rows or self._fixed:
            in_words = self._weight.kind in KINDS
            tile = choose_rows(x.shape[0], self._weight, x.dtype, (splits or in_words) and not self._fixed)
            out = some_rows(x, self._weight, bias, tile, self._pdl)
            return out if splits or tile.terms == 1 else out.sum(dim=0)
        return self._widened(x, None if bias is None else bias.to(x.dtype))

    def _widened(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """By as many rows of the matrix at a time as are widened at once."""
        step = max(1, _MOST_WIDENED // self.cols)
        if step >= self.rows:
            return F.linear(x, values(self._weight, x.dtype), bias)
        out = torch.empty((x.shape[0], self.rows), dtype=x.dtype, device=x.device)
        for first in range(0, self.rows, step):
            some = slice(first, first + step)
            part = values(self._weight.rows_of(first, step), x.dtype)
            out[:, some] = F.linear(x, part, None if bias is None else bias[some])
        return out

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x, None)

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        return values(self._weight, self._dtype, ids, scale)

    def values(self, first: int, count: int) -> torch.Tensor:
        return values(self._weight.rows_of(first, count), torch.float32)

    def add_norm_linear(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, ops: Ops) -> Pair:
        if self._suits_one(stream[1]):
            return one_row(stream[0], self._weight, bias, Entry(stream[1], *norm), "", self._pdl)
        return super().add_norm_linear(stream, norm, bias, ops)

    def add_norm_gated(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, gelu: bool, ops: Ops) -> Pair:
        if self._suits_one(stream[1]):
            gate = "gelu" if gelu else "silu"
            return one_row(stream[0], self._weight, bias, Entry(stream[1], *norm), gate, self._pdl)
        return super().add_norm_gated(stream, norm, bias, gelu, ops)

    def _suits_one(self, x: torch.Tensor) -> bool:
        """Of planes of words a row of float32 is multiplied as several are: compiled for an H200, the kernel for one is
        right with numbers of 16 bits alone."""
        return x.shape[0] == 1 and not self._fixed and (x.element_size() == 2 or self._weight.kind not in KINDS)

"""Matrices of few bits, widened for a library's product."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.lowbit.few_bits import SPAN, Stored
from cadence.kernels.triton.lowbit.few_bits_table import numbers_of_table
from cadence.kernels.triton.lowbit.span_products import along, store_spans
from cadence.kernels.triton.lowbit.span_tiles import LIFT, numbers_four, tiles_four

_SPANS, _LINES = 32, 4  # of a program: spans of four-bit numbers, and rows of the matrix


@quick
@triton.jit
def widen_bytes(
    out_ptr, weight_ptr, scale_ptr, row_stride, group_stride,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: the numbers of a weight, as `Stored` has those of eight bits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    scale = tl.load(scale_ptr + row * row_stride + column // GROUP * group_stride, inside, other=0.0)
    value = tl.load(weight_ptr + row * WIDTH + column, inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (value * scale).to(out_ptr.dtype.element_ty), inside)


@quick
@triton.jit
def widen_fours(
    out_ptr, weight_ptr, scale_ptr, zero_ptr, table_ptr, rows, row_stride, group_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr,
    TABLE: tl.constexpr, LIFT: tl.constexpr, QUICK: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: the numbers of a weight, as `Stored` has those of four bits. LIFT: how much too large those of
    `span_tiles` are."""
    line = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    first, exists = tl.program_id(1) * SPANS, line < rows
    held = tiles_four(weight_ptr, weight_ptr, line, exists, first, WIDTH, SPANS, False, QUICK)
    numbers = numbers_four(held, QUICK)
    span = first + tl.arange(0, SPANS)
    inside = exists[:, None] & (span < WIDTH // 64)[None, :]
    found = ()
    for part in tl.static_range(4):
        at = line[:, None] * row_stride + ((span * 64 + 16 * part) // GROUP)[None, :] * group_stride
        if TABLE:
            value = numbers_of_table(held[0].to(tl.int32) >> (4 * part) & 15, table_ptr)
        elif ZEROS:
            value = numbers[part] - LIFT - along(tl.load(zero_ptr + at, inside, other=0.0))
        else:
            value = numbers[part] - (LIFT + 8.0)
        value *= along(tl.load(scale_ptr + at, inside, other=0.0))
        found += (value.to(out_ptr.dtype.element_ty),)
    store_spans(out_ptr, found, line, exists, first, WIDTH)


def widened(weight: Stored, dtype: torch.dtype) -> torch.Tensor:
    """[rows, cols] of this type"""
    out = torch.empty((weight.rows, weight.cols), dtype=dtype, device=weight.values.device)
    if weight.is_four:
        _widen_fours(out, weight)
        return out
    columns = min(2048, triton.next_power_of_2(weight.cols))
    widen_bytes[(weight.rows, triton.cdiv(weight.cols, columns))](
        out, weight.values, weight.scales, *weight.scales.stride(),
        WIDTH=weight.cols, COLUMNS=columns, GROUP=weight.group, num_warps=4,
    )  # fmt: skip
    return out


def _widen_fours(out: torch.Tensor, weight: Stored) -> None:
    spans = min(_SPANS, triton.next_power_of_2(weight.cols // SPAN))
    widen_fours[(triton.cdiv(weight.rows, _LINES), triton.cdiv(weight.cols, spans * SPAN))](
        out, weight.values, weight.scales, weight.zeros if len(weight.zeros) else weight.scales,
        weight.table.words if weight.table.exists else weight.scales, weight.rows, *weight.scales.stride(),
        WIDTH=weight.cols, ROWS=_LINES, SPANS=spans, GROUP=weight.group, ZEROS=len(weight.zeros) > 0,
        TABLE=weight.table.exists, LIFT=0 if is_interpreted() else LIFT, QUICK=not is_interpreted(), num_warps=1,
    )  # fmt: skip

"""Matrices of few bits, widened for a library's product."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.triton.few_bits import Stored
from cadence.kernels.triton.few_bits_table import numbers_of_table
from cadence.kernels.triton.launch import quick


@quick
@triton.jit
def widen(
    out_ptr, weight_ptr, scale_ptr, zero_ptr, row_stride, group_stride, table_ptr,
    WIDTH: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, FOUR: tl.constexpr, ZEROS: tl.constexpr,
    TABLE: tl.constexpr,
):  # fmt: skip
    """out [rows, WIDTH]: the numbers of a weight, as `Stored` has them."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < WIDTH
    scale = tl.load(scale_ptr + row * row_stride + column // GROUP * group_stride, inside, other=0.0)
    if FOUR:
        at = column // 64 * 32 + column % 16 * 2 + column % 64 // 32
        byte = tl.load(weight_ptr + row * (WIDTH // 2) + at, inside, other=0)
        code = tl.where(column % 32 < 16, byte & 15, byte >> 4)
        if TABLE:
            value = numbers_of_table(code, table_ptr)
        else:
            zero = 8.0
            if ZEROS:
                zero = tl.load(zero_ptr + row * row_stride + column // GROUP * group_stride, inside, other=0.0)
            value = code.to(tl.float32) - zero
    else:
        value = tl.load(weight_ptr + row * WIDTH + column, inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * WIDTH + column, (value * scale).to(out_ptr.dtype.element_ty), inside)


def widened(weight: Stored, dtype: torch.dtype) -> torch.Tensor:
    """[rows, cols] of this type"""
    out = torch.empty((weight.rows, weight.cols), dtype=dtype, device=weight.values.device)
    columns = min(2048, triton.next_power_of_2(weight.cols))
    widen[(weight.rows, triton.cdiv(weight.cols, columns))](
        out, weight.values, weight.scales, weight.zeros if len(weight.zeros) else weight.scales,
        *weight.scales.stride(), weight.table.words if weight.table.exists else weight.values,
        WIDTH=weight.cols, COLUMNS=columns, GROUP=weight.group, FOUR=weight.is_four, ZEROS=len(weight.zeros) > 0,
        TABLE=weight.table.exists, num_warps=4,
    )  # fmt: skip
    return out

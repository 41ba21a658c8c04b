"""A linear map of some rows by a matrix of 4 or 8 bits, which becomes numbers in registers on its way to the tensor
cores: it is their left side, and the rows of x are the columns of their right side. Columns come in one order: a row's
bits do not depend on the rows beside it. Where a product has few outputs, and a norm comes next, K is split among more
programs, and the norm adds up what they leave."""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.common.private import is_interpreted
from cadence.kernels.triton.linear.few_rows import FewTile, store_terms
from cadence.kernels.triton.lowbit.few_bits import Stored
from cadence.kernels.triton.lowbit.few_bits_table import quarters_of_table

MANY_OUTPUTS = 16384
_PROCESSORS = 132  # of the GPU the choices were measured on

# Two numbers of 16 bits -> four pairs of bfloat16, of their lowest four bits and so on, each less 8. Four bits are put
# into the last ones of 128.0, which is taken away again with the 8.
_QUARTERS: tl.constexpr = tl.constexpr(
    """
    {
    .reg .b32 a, one, less;
    mov.b32 one, 0x3F803F80;
    mov.b32 less, 0xC308C308;
    lop3.b32 a, $4, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $0, a, one, less;
    shr.u32 a, $4, 4;
    lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $1, a, one, less;
    shr.u32 a, $4, 8;
    lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $2, a, one, less;
    shr.u32 a, $4, 12;
    lop3.b32 a, a, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $3, a, one, less;
    }
    """
)


@triton.jit
def _quarters(tile, DTYPE, QUICK):
    """Numbers of 16 bits -> the four that each holds, less 8."""
    if QUICK and tl.bfloat16 == DTYPE:
        return tl.inline_asm_elementwise(
            _QUARTERS, "=r,=r,=r,=r,r", [tile], is_pure=True, pack=2,
            dtype=(tl.bfloat16, tl.bfloat16, tl.bfloat16, tl.bfloat16),
        )  # fmt: skip
    wide = tile.to(tl.int32)
    return (
        ((wide & 15) - 8).to(DTYPE), ((wide >> 4 & 15) - 8).to(DTYPE),
        ((wide >> 8 & 15) - 8).to(DTYPE), ((wide >> 12 & 15) - 8).to(DTYPE),
    )  # fmt: skip


@triton.jit
def _less(value, zero, ZEROS):
    """value [OUTPUTS, n], zero [OUTPUTS]"""
    if ZEROS:
        return (value.to(tl.float32) - zero[:, None]).to(value.dtype)
    return value


@triton.jit
def _four(acc, quarters, xs, scales, zeros, GROUP, ZEROS, PRECISION):
    """acc and the product of one tile of four-bit values, which have one scale a row, or two.

    quarters: four of [OUTPUTS, n], xs: four of [n, ROWS], scales and zeros: two of [OUTPUTS], zeros less 8."""
    a, b, c, d = quarters
    part = tl.dot(_less(a, zeros[0], ZEROS), xs[0], input_precision=PRECISION)
    part = tl.dot(_less(b, zeros[0], ZEROS), xs[1], part, input_precision=PRECISION)
    if GROUP == 32:
        acc += part * scales[0][:, None]
        part = tl.dot(_less(c, zeros[1], ZEROS), xs[2], input_precision=PRECISION)
    else:
        part = tl.dot(_less(c, zeros[1], ZEROS), xs[2], part, input_precision=PRECISION)
    part = tl.dot(_less(d, zeros[1], ZEROS), xs[3], part, input_precision=PRECISION)
    return acc + part * scales[1][:, None]


@triton.jit
def _heads(at, start, end, exists, other, group_stride, GROUP):
    """Of the tile that begins at column `start`, unless it is the end: what its first columns have, and its last."""
    first = tl.load(at + start // GROUP * group_stride, exists & (start < end), other=other)
    if GROUP == 32:
        return first, tl.load(at + (start // GROUP + 1) * group_stride, exists & (start < end), other=other)
    return first, first


@triton.jit
def product4(
    acc, at, x_at, scale_at, zero_at, group_stride, table_ptr, start, end, exists, there, COLUMNS, GROUP, ZEROS,
    LOOKUP, EVEN, QUICK, PRECISION,
):  # fmt: skip
    """acc [OUTPUTS, ROWS] and the product of columns [start, end). at [OUTPUTS, COLUMNS / 4] to numbers of 16 bits,
    x_at [COLUMNS / 4, ROWS] to the first of the four columns that each has. LOOKUP: of the table, or ""."""
    place = tl.arange(0, COLUMNS // 4)
    column = place // 16 * 64 + place % 16
    scales = _heads(scale_at, start, end, exists, 0.0, group_stride, GROUP)  # asked for one tile ahead
    zeros = scales
    if ZEROS:
        zeros = _heads(zero_at, start, end, exists, 8.0, group_stride, GROUP)
    for first in range(start, end, COLUMNS):
        if EVEN:
            inside = there[None, :]
            tile = tl.load(at)
        else:
            inside = (first + column < end)[:, None] & there[None, :]
            tile = tl.load(at, exists[:, None] & (first + column < end)[None, :], other=0)
        xs = (
            tl.load(x_at, inside, other=0.0), tl.load(x_at + 16, inside, other=0.0),
            tl.load(x_at + 32, inside, other=0.0), tl.load(x_at + 48, inside, other=0.0),
        )  # fmt: skip
        next_scales = _heads(scale_at, first + COLUMNS, end, exists, 0.0, group_stride, GROUP)
        next_zeros = next_scales
        less = zeros
        if ZEROS:
            next_zeros = _heads(zero_at, first + COLUMNS, end, exists, 8.0, group_stride, GROUP)
            less = (zeros[0] - 8.0, zeros[1] - 8.0)
        if LOOKUP != "":
            quarters = quarters_of_table(tile, table_ptr, xs[0].dtype, LOOKUP, QUICK)
        else:
            quarters = _quarters(tile, xs[0].dtype, QUICK)
        acc = _four(acc, quarters, xs, scales, less, GROUP, ZEROS, PRECISION)
        scales, zeros = next_scales, next_zeros
        at += COLUMNS // 4
        x_at += COLUMNS
    return acc


@triton.jit
def _spread(at, group, exists, group_stride, GROUPS):
    """at [OUTPUTS], group [n] -> [OUTPUTS, n]"""
    return tl.load(at[:, None] + group[None, :] * group_stride, exists[:, None] & (group < GROUPS)[None, :], other=0.0)


@triton.jit
def product8(acc, at, x_at, scale_at, group_stride, start, end, exists, there, COLUMNS, GROUP, WIDTH, EVEN, PRECISION):
    """acc [OUTPUTS, ROWS] and the product of columns [start, end). at [OUTPUTS, COLUMNS], x_at [COLUMNS, ROWS]."""
    column = tl.arange(0, COLUMNS)
    for first in range(start, end, COLUMNS):
        if EVEN:
            x = tl.load(x_at, there[None, :], other=0.0)
            tile = tl.load(at)
        else:
            x = tl.load(x_at, (first + column < end)[:, None] & there[None, :], other=0.0)
            tile = tl.load(at, exists[:, None] & (first + column < end)[None, :], other=0.0)
        if GROUP == WIDTH:
            acc = tl.dot(tile.to(x.dtype), x, acc, input_precision=PRECISION)
        elif GROUP % COLUMNS == 0:
            scale = tl.load(scale_at + first // GROUP * group_stride, exists, other=0.0)
            acc += tl.dot(tile.to(x.dtype), x, input_precision=PRECISION) * scale[:, None]
        else:
            scale = _spread(scale_at, (first + column) // GROUP, exists, group_stride, WIDTH // GROUP)
            acc = tl.dot((tile.to(tl.float32) * scale).to(x.dtype), x, acc, input_precision=PRECISION)
        at += COLUMNS
        x_at += COLUMNS
    if GROUP == WIDTH:
        acc *= tl.load(scale_at, exists, other=0.0)[:, None]
    return acc


@quick
@triton.jit(do_not_specialize=["rows"])
def wide(
    out_ptr, x_ptr, weight_ptr, scale_ptr, zero_ptr, bias_ptr, rows, outputs, x_stride, row_stride, group_stride,
    table_ptr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    FOUR: tl.constexpr, ZEROS: tl.constexpr, LOOKUP: tl.constexpr, EVEN: tl.constexpr, TERMS: tl.constexpr,
    BIAS: tl.constexpr, QUICK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times weight, which is as `Stored` says: of FOUR bits,
    or of eight. EVEN: OUTPUTS divides outputs, and COLUMNS divides WIDTH // TERMS; with several terms it is so."""
    PART: tl.constexpr = WIDTH // TERMS
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    exists, there = output < outputs, row < rows
    HELD: tl.constexpr = 4 if FOUR else 1  # columns in an element of the weight
    place = tl.arange(0, COLUMNS // HELD)
    begin = term * (PART // HELD)
    at = weight_ptr + output.to(tl.int64)[:, None] * (WIDTH // HELD) + begin + place[None, :]
    scale_at = scale_ptr + output.to(tl.int64) * row_stride
    zero_at = zero_ptr + output.to(tl.int64) * row_stride
    column = place // 16 * 64 + place % 16 if FOUR else place
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_stride + term * PART + column[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    start = term * PART
    if FOUR:
        acc = product4(
            acc, at, x_at, scale_at, zero_at, group_stride, table_ptr, start, start + PART, exists, there,
            COLUMNS, GROUP, ZEROS, LOOKUP, EVEN, QUICK, PRECISION,
        )  # fmt: skip
    else:
        acc = product8(
            acc, at, x_at, scale_at, group_stride, start, start + PART, exists, there,
            COLUMNS, GROUP, WIDTH, EVEN, PRECISION,
        )  # fmt: skip
    store_terms(out_ptr, bias_ptr, acc, term, row, output, rows, outputs, BIAS)


def choose_wide(rows: int, weight: Stored, dtype: torch.dtype, most_terms: int) -> FewTile:
    """What was fastest on an H200. All go through the columns in the same steps. most_terms: of sums over columns"""
    tile = _whole_tile(rows, weight, dtype)
    programs = weight.rows // tile.outputs * triton.cdiv(rows, tile.rows)
    room = _PROCESSORS if tile.warps == 8 else 2 * _PROCESSORS
    for terms in range(most_terms if weight.rows % tile.outputs == 0 else 1, 1, -1):
        if weight.cols % (terms * tile.columns) == 0 and terms * programs <= room:
            return replace(tile, terms=terms)
    return tile


def _whole_tile(rows: int, weight: Stored, dtype: torch.dtype) -> FewTile:
    if weight.is_four and weight.group % 128:  # a tile has one scale a row, or two
        return FewTile(16 if rows <= 16 else 64, 64, 64, 4, 2)
    if dtype is torch.float32 or weight.group < 128:  # scales, or wide numbers, take the room of what comes next
        return FewTile(16 if rows <= 16 else 64, 64, 128, 4, 2)
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if tall == 64 and weight.is_four and weight.rows % 256 == 0:  # every program reads all of x
        return FewTile(tall, 256, 128, 8, 3)
    if weight.rows >= MANY_OUTPUTS:
        return FewTile(tall, 128, 128, 4, 3)
    return FewTile(tall, 64, 128, 4, 3)


def linear_wide(
    x: torch.Tensor,
    weight: Stored,
    bias: torch.Tensor | None,
    pdl: bool,
    tile: FewTile | None = None,
) -> torch.Tensor:
    """x [T, in] -> [T, out]; a tile with terms: [terms, T, out], which are to be added up."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], weight.rows
    tile = tile or choose_wide(rows, weight, x.dtype, 1)
    out = tile.room(rows, outputs, x.dtype, x.device)
    values = weight.values.view(torch.int16) if weight.is_four else weight.values
    wide[tile.grid(rows, outputs)](
        out, x, values, weight.scales, weight.zeros if len(weight.zeros) else weight.scales,
        weight.scales if bias is None else bias, rows, outputs, x.stride(0), *weight.scales.stride(),
        weight.table.words if weight.table.exists else values,
        WIDTH=weight.cols, ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, GROUP=weight.group,
        FOUR=weight.is_four, ZEROS=len(weight.zeros) > 0, LOOKUP=weight.table.lookup(x.dtype),
        EVEN=outputs % tile.outputs == 0 and weight.cols % (tile.terms * tile.columns) == 0, TERMS=tile.terms,
        BIAS=bias is not None,
        QUICK=x.element_size() == 2 and not is_interpreted(),
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out

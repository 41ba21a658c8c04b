"""A linear map of some rows by a matrix of 4 or 8 bits, which becomes numbers in registers on its way to the tensor
cores: it is their left side, and the rows of x are the columns of their right side. Columns come in one order: a row's
bits do not depend on the rows beside it. Where a product has few outputs, and a norm comes next, K is split among more
programs, and the norm adds up what they leave."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.few_bits import Stored
from cadence.kernels.triton.few_rows import FewTile
from cadence.kernels.triton.launch import quick
from cadence.kernels.triton.private import is_interpreted

_MANY_OUTPUTS = 16384
_PROCESSORS = 132  # of the GPU the choices were measured on

# Four bytes -> four pairs of bfloat16, of their low halves and of their high ones, each less 8. A half is put into the
# last bits of 128.0, which is taken away again with the 8.
_HALVES: tl.constexpr = tl.constexpr(
    """
    {
    .reg .b32 a, b, c, d, e, one, less;
    mov.b32 one, 0x3F803F80;
    mov.b32 less, 0xC308C308;
    prmt.b32 a, $4, 0, 0x4140;
    prmt.b32 b, $4, 0, 0x4342;
    shr.u32 c, a, 4;
    shr.u32 d, b, 4;
    lop3.b32 e, a, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $0, e, one, less;
    lop3.b32 e, b, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $1, e, one, less;
    lop3.b32 e, c, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $2, e, one, less;
    lop3.b32 e, d, 0x000F000F, 0x43004300, 0xEA;
    fma.rn.bf16x2 $3, e, one, less;
    }
    """
)


@triton.jit
def _halves(tile, DTYPE: tl.constexpr, QUICK: tl.constexpr):
    """Bytes -> of each the low half and the high one, less 8."""
    if QUICK:
        return tl.inline_asm_elementwise(
            _HALVES, "=r,=r,=r,=r,r", [tile], dtype=(tl.bfloat16, tl.bfloat16), is_pure=True, pack=4
        )
    return ((tile & 15).to(tl.float32) - 8.0).to(DTYPE), ((tile >> 4).to(tl.float32) - 8.0).to(DTYPE)


@triton.jit
def _spread(at, group, exists, GROUPS: tl.constexpr):
    """at [OUTPUTS], group [n] -> [OUTPUTS, n]"""
    return tl.load(at[:, None] + group[None, :], exists[:, None] & (group < GROUPS)[None, :], other=0.0)


@triton.jit
def _four(
    acc, tile, x_low, x_high, scale_at, zero_at, start, column, exists,
    GROUP: tl.constexpr, GROUPS: tl.constexpr, COLUMNS: tl.constexpr, ZEROS: tl.constexpr, QUICK: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """acc and the product of one tile of four-bit values."""
    low, high = _halves(tile, x_low.dtype, QUICK)
    if GROUP % COLUMNS == 0:  # the tile has one scale a row
        if ZEROS:
            zero = (tl.load(zero_at + start // GROUP, exists, other=8.0) - 8.0)[:, None]
            low, high = (low.to(tl.float32) - zero).to(x_low.dtype), (high.to(tl.float32) - zero).to(x_low.dtype)
        part = tl.dot(low, x_low, input_precision=PRECISION)
        part = tl.dot(high, x_high, part, input_precision=PRECISION)
        return acc + part * tl.load(scale_at + start // GROUP, exists, other=0.0)[:, None]
    group = (start + column) // GROUP
    second = group + 1 if GROUP == 32 else group  # of the high halves
    wide_low, wide_high = low.to(tl.float32), high.to(tl.float32)
    if ZEROS:
        wide_low += 8.0 - _spread(zero_at, group, exists, GROUPS)
        wide_high += 8.0 - _spread(zero_at, second, exists, GROUPS)
    low = (wide_low * _spread(scale_at, group, exists, GROUPS)).to(x_low.dtype)
    high = (wide_high * _spread(scale_at, second, exists, GROUPS)).to(x_low.dtype)
    return tl.dot(high, x_high, tl.dot(low, x_low, acc, input_precision=PRECISION), input_precision=PRECISION)


@quick
@triton.jit(do_not_specialize=["rows"])
def wide(
    out_ptr, x_ptr, weight_ptr, scale_ptr, zero_ptr, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    FOUR: tl.constexpr, ZEROS: tl.constexpr, EVEN: tl.constexpr, TERMS: tl.constexpr, BIAS: tl.constexpr,
    QUICK: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times weight, which is as `Stored` says: of FOUR bits,
    or of eight. EVEN: OUTPUTS divides outputs, and COLUMNS divides WIDTH // TERMS; with several terms it is so."""
    PART: tl.constexpr = WIDTH // TERMS
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    exists, there = output < outputs, row < rows
    GROUPS: tl.constexpr = WIDTH // GROUP
    STEP: tl.constexpr = COLUMNS // 2 if FOUR else COLUMNS  # elements of the weight's tile
    place = tl.arange(0, STEP)
    begin = term * (PART // 2 if FOUR else PART)
    at = weight_ptr + output.to(tl.int64)[:, None] * (WIDTH // 2 if FOUR else WIDTH) + begin + place[None, :]
    scale_at = scale_ptr + output.to(tl.int64) * GROUPS
    zero_at = zero_ptr + output.to(tl.int64) * GROUPS
    column = place // 32 * 64 + place % 32 if FOUR else place
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_stride + term * PART + column[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for first in range(0, PART, COLUMNS):
        start = term * PART + first
        if EVEN:
            inside = there[None, :]
            tile = tl.load(at)
        else:
            inside = (start + column < WIDTH)[:, None] & there[None, :]
            tile = tl.load(at, exists[:, None] & (start + column < WIDTH)[None, :], other=0.0)
        x = tl.load(x_at, inside, other=0.0)
        if FOUR:
            x_high = tl.load(x_at + 32, inside, other=0.0)
            acc = _four(
                acc, tile, x, x_high, scale_at, zero_at, start, column, exists,
                GROUP, GROUPS, COLUMNS, ZEROS, QUICK, PRECISION,
            )  # fmt: skip
        elif GROUP == WIDTH:
            acc = tl.dot(tile.to(x.dtype), x, acc, input_precision=PRECISION)
        else:
            scale = _spread(scale_at, (start + column) // GROUP, exists, GROUPS)
            acc = tl.dot((tile.to(tl.float32) * scale).to(x.dtype), x, acc, input_precision=PRECISION)
        at += STEP
        x_at += COLUMNS
    if GROUP == WIDTH and not FOUR:
        acc *= tl.load(scale_at, exists, other=0.0)[:, None]
    if BIAS and term == 0:
        acc += tl.load(bias_ptr + output, exists, other=0.0).to(tl.float32)[:, None]
    target = out_ptr + (term * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])


def choose_wide(rows: int, weight: Stored, dtype: torch.dtype, splits: bool) -> FewTile:
    """What was fastest on an H200. All go through the columns in the same steps. splits: sums may be left in terms"""
    tile = _whole_tile(rows, weight, dtype)
    terms, programs = 1, weight.rows // tile.outputs * triton.cdiv(rows, tile.rows)
    even = weight.rows % tile.outputs == 0
    while splits and even and terms < 4 and 2 * terms * programs <= 2 * _PROCESSORS:
        if weight.cols % (2 * terms * tile.columns):
            break
        terms *= 2
    return replace(tile, terms=terms)


def _whole_tile(rows: int, weight: Stored, dtype: torch.dtype) -> FewTile:
    if dtype is torch.float32 or weight.group < 128:  # scales, or wide numbers, take the room of what comes next
        return FewTile(16 if rows <= 16 else 64, 64, 128, 4, 2)
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= 64 else 128
    if weight.rows >= _MANY_OUTPUTS:
        return FewTile(tall, 128, 128, 4, 3)
    return FewTile(tall, 64, 128, 4, 3)


def linear_wide(
    x: torch.Tensor,
    weight: Stored,
    bias: torch.Tensor | None,
    pdl: bool,
    tile: FewTile | None = None,
    splits: bool = False,
) -> torch.Tensor:
    """x [T, in] -> [T, out], or terms of it [terms, T, out] where `splits` allows them"""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], weight.rows
    tile = tile or choose_wide(rows, weight, x.dtype, splits)
    size = (rows, outputs) if tile.terms == 1 else (tile.terms, rows, outputs)
    out = torch.empty(size, dtype=x.dtype, device=x.device)
    wide[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows), tile.terms)](
        out, x, weight.values, weight.scales, weight.zeros if len(weight.zeros) else weight.scales,
        weight.scales if bias is None else bias, rows, outputs, x.stride(0),
        WIDTH=weight.cols, ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, GROUP=weight.group,
        FOUR=weight.is_four, ZEROS=len(weight.zeros) > 0,
        EVEN=outputs % tile.outputs == 0 and weight.cols % (tile.terms * tile.columns) == 0, TERMS=tile.terms,
        BIAS=bias is not None,
        QUICK=x.dtype is torch.bfloat16 and not is_interpreted(),
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out

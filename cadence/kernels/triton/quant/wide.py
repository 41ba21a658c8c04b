"""A linear map of some rows by a matrix of 4 or 8 bits, which becomes numbers in registers on its way to the tensor
cores: it is their left side, and the rows of x are the columns of their right side. No sum is split, and columns come
in one order: a row's bits do not depend on the rows beside it."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.launch import quick
from cadence.kernels.triton.quant.stored import Stored


@triton.jit
def _spread(at, group, exists, GROUPS: tl.constexpr):
    """at [OUTPUTS], group [n] -> [OUTPUTS, n]"""
    return tl.load(at[:, None] + group[None, :], exists[:, None] & (group < GROUPS)[None, :], other=0.0)


@quick
@triton.jit(do_not_specialize=["rows"])
def wide(
    out_ptr, x_ptr, weight_ptr, scale_ptr, zero_ptr, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr,
    FOUR: tl.constexpr, ZEROS: tl.constexpr, BIAS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, WIDTH] times weight, which is as `Stored` says: of FOUR bits, or of eight."""
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    exists, there = output < outputs, row < rows
    GROUPS: tl.constexpr = WIDTH // GROUP
    STEP: tl.constexpr = COLUMNS // 2 if FOUR else COLUMNS  # elements of the weight's tile
    place = tl.arange(0, STEP)
    at = weight_ptr + output.to(tl.int64)[:, None] * (WIDTH // 2 if FOUR else WIDTH) + place[None, :]
    scale_at = scale_ptr + output.to(tl.int64) * GROUPS
    zero_at = zero_ptr + output.to(tl.int64) * GROUPS
    column = place // 32 * 64 + place % 32 if FOUR else place
    x_at = x_ptr + row.to(tl.int64)[None, :] * x_stride + column[:, None]
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for start in range(0, WIDTH, COLUMNS):
        inside = (start + column < WIDTH)[:, None] & there[None, :]
        stored = exists[:, None] & (start + column < WIDTH)[None, :]
        tile = tl.load(at, stored, other=0.0)
        x = tl.load(x_at, inside, other=0.0)
        if FOUR:
            group = (start + column) // GROUP
            low, high = (tile & 15).to(tl.float32), (tile >> 4).to(tl.float32)
            scale = _spread(scale_at, group, exists, GROUPS)
            zero = 8.0
            if ZEROS:
                zero = _spread(zero_at, group, exists, GROUPS)
            acc = tl.dot(((low - zero) * scale).to(x.dtype), x, acc, input_precision=PRECISION)
            if GROUP == 32:
                scale = _spread(scale_at, group + 1, exists, GROUPS)
                if ZEROS:
                    zero = _spread(zero_at, group + 1, exists, GROUPS)
            x = tl.load(x_at + 32, inside, other=0.0)
            acc = tl.dot(((high - zero) * scale).to(x.dtype), x, acc, input_precision=PRECISION)
        elif GROUP == WIDTH:
            acc = tl.dot(tile.to(x.dtype), x, acc, input_precision=PRECISION)
        else:
            scale = _spread(scale_at, (start + column) // GROUP, exists, GROUPS)
            acc = tl.dot((tile.to(tl.float32) * scale).to(x.dtype), x, acc, input_precision=PRECISION)
        at += STEP
        x_at += COLUMNS
    if GROUP == WIDTH and not FOUR:
        acc *= tl.load(scale_at, exists, other=0.0)[:, None]
    if BIAS:
        acc += tl.load(bias_ptr + output, exists, other=0.0).to(tl.float32)[:, None]
    target = out_ptr + row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])


@dataclass(frozen=True, slots=True)
class WideTile:
    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int


def choose_wide(rows: int, weight: Stored) -> WideTile:
    """All go through the columns in the same steps."""
    del weight
    if rows <= 16:
        return WideTile(16, 64, 128, 4, 4)
    if rows <= 32:
        return WideTile(32, 64, 128, 4, 4)
    if rows <= 64:
        return WideTile(64, 64, 128, 4, 4)
    return WideTile(128, 128, 128, 8, 3)


def linear_wide(
    x: torch.Tensor, weight: Stored, bias: torch.Tensor | None, pdl: bool, tile: WideTile | None = None
) -> torch.Tensor:
    """x [T, in] -> [T, out]"""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, outputs = x.shape[0], weight.rows
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    tile = tile or choose_wide(rows, weight)
    wide[(triton.cdiv(outputs, tile.outputs), triton.cdiv(rows, tile.rows))](
        out, x, weight.values, weight.scales, weight.zeros if len(weight.zeros) else weight.scales,
        weight.scales if bias is None else bias, rows, outputs, x.stride(0),
        WIDTH=weight.cols, ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, GROUP=weight.group,
        FOUR=weight.is_four, ZEROS=len(weight.zeros) > 0, BIAS=bias is not None,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out

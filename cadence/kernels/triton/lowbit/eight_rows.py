"""A linear map of some rows of eight bits by a matrix of eight bits, both fp8 or both int8: the tensor cores take both
as they are, the matrix as their left side. Where a product has few outputs, and a norm comes next, K is split among
more programs, and the norm adds up what they leave. Within a term columns come in one order: a row's bits do not depend
on the rows beside it."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.few_rows import FewTile
from cadence.kernels.triton.lowbit.few_bits import Stored

_PROCESSORS = 132  # of the GPU the choices were measured on
_COLUMNS = 256  # a step; 128 where rows are not a multiple of it, or have a scale for some of them
_MANY = 64  # rows; for more, tiles are wider


@quick
@triton.jit(do_not_specialize=["rows"])
def eight_rows(
    out_ptr, x_ptr, x_scale_ptr, weight_ptr, scale_ptr, bias_ptr, rows, outputs,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    TERMS: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times weight [outputs, WIDTH]; a row of x is times its
    scale, of the weight every GROUP of columns. COLUMNS divides WIDTH // TERMS, and GROUP, which divides WIDTH; OUTPUTS
    divides outputs."""
    PART: tl.constexpr = WIDTH // TERMS
    GROUPS: tl.constexpr = WIDTH // GROUP
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    column = term * PART + tl.arange(0, COLUMNS)
    exists = row < rows
    w_at = weight_ptr + output.to(tl.int64)[:, None] * WIDTH + column[None, :]
    x_at = x_ptr + row.to(tl.int64)[None, :] * WIDTH + column[:, None]
    scale_at = scale_ptr + output.to(tl.int64) * GROUPS
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    SUM: tl.constexpr = tl.int32 if weight_ptr.dtype.element_ty == tl.int8 else tl.float32
    if GROUPS == 1:
        whole = tl.zeros([OUTPUTS, ROWS], SUM)
        for _ in range(0, PART, COLUMNS):
            whole = tl.dot(tl.load(w_at), tl.load(x_at, exists[None, :], other=0.0), whole, out_dtype=SUM)
            w_at += COLUMNS
            x_at += COLUMNS
        acc = whole.to(tl.float32) * tl.load(scale_at)[:, None]
    else:
        acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
        for first in range(0, PART, COLUMNS):
            part = tl.dot(tl.load(w_at), tl.load(x_at, exists[None, :], other=0.0), out_dtype=SUM)
            acc += part.to(tl.float32) * tl.load(scale_at + (term * PART + first) // GROUP)[:, None]
            w_at += COLUMNS
            x_at += COLUMNS
    acc *= tl.load(x_scale_ptr + row, exists, other=0.0)[None, :]
    if BIAS and term == 0:
        acc += tl.load(bias_ptr + output).to(tl.float32)[:, None]
    place = out_ptr + (term * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), exists[None, :])


def choose_eight(rows: int, weight: Stored, splits: bool, fixed: bool) -> FewTile | None:
    """None: a size that these programs do not divide. splits: sums may be left in terms. fixed: bits do not depend on
    `rows`, so all are of one kind"""
    outputs, width = weight.rows, weight.cols
    columns = _COLUMNS if width % _COLUMNS == 0 and weight.group == width else _COLUMNS // 2
    if width % columns or outputs % 64 or weight.group % columns:
        return None
    tall = 16 if rows <= 16 else 32 if rows <= 32 else 64 if rows <= _MANY else 128
    if tall == 128 and outputs % 128 == 0 and not fixed:
        return FewTile(128, 128, columns, 8, 3)
    terms = 1
    while (
        splits
        and not fixed
        and terms < 4
        and outputs // 64 * 2 * terms <= 2 * _PROCESSORS
        and width % (2 * terms * columns) == 0
    ):
        terms *= 2
    return FewTile(tall, 64, columns, 4, 4 if tall <= 64 else 3, terms)


def linear_eight(
    quants: Pair, weight: Stored, bias: torch.Tensor | None, dtype: torch.dtype, tile: FewTile, pdl: bool
) -> torch.Tensor:
    """quants: [T, in] of the weight's type and scales [T, 1] -> [T, out], or [terms, T, out], to be added up"""
    x, x_scales = quants
    rows, outputs, width = x.shape[0], weight.rows, weight.cols
    out = tile.room(rows, outputs, dtype, x.device)
    eight_rows[tile.grid(rows, outputs)](
        out, x, x_scales, weight.values, weight.scales, weight.scales if bias is None else bias, rows, outputs,
        WIDTH=width, GROUP=weight.group, ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns, TERMS=tile.terms,
        BIAS=bias is not None, PDL=pdl, num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out

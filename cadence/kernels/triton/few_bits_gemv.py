"""A linear map of one row by a matrix of four bits, alone or together with the norm before and the gate after it.

As `gemv`, of which it has the order of work; a thread takes sixteen bytes at a time, which have one scale, or two.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.elementwise import activate
from cadence.kernels.triton.few_bits import Stored
from cadence.kernels.triton.gemv import Entry, entering
from cadence.kernels.triton.launch import quick

_COLUMNS = 2048
_ROWS = 4
_WARPS = 4


@triton.jit
def _bytes(at, exists, FIRST: tl.constexpr, WIDTH: tl.constexpr, COLUMNS: tl.constexpr):
    """Of columns [FIRST, FIRST + COLUMNS) of the rows that begin at `at` [ROWS]."""
    place = FIRST // 2 + tl.arange(0, COLUMNS // 2)
    inside = exists[:, None] & (place < WIDTH // 2)[None, :]
    return tl.load(at[:, None] + place[None, :], inside, other=0, eviction_policy="evict_first")


@triton.jit
def _scaled(sums, of_x, at, zero_at, exists, group, GROUPS: tl.constexpr, ZEROS: tl.constexpr):
    """sums [ROWS, n] of quants times x, of_x [n] of x alone -> of values times x."""
    inside = exists[:, None] & (group < GROUPS)[None, :]
    zero = 8.0
    if ZEROS:
        zero = tl.load(zero_at[:, None] + group[None, :], inside, other=0.0)
    return (sums - zero * of_x[None, :]) * tl.load(at[:, None] + group[None, :], inside, other=0.0)


@quick
@triton.jit
def gemv4(
    out_ptr, total_ptr, x_ptr, residual_ptr, norm_ptr, weight_ptr, scale_ptr, zero_ptr, bias_ptr, eps, outputs,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, GROUP: tl.constexpr, ZEROS: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [outputs] = weight times x [WIDTH]; with NORM, times rms_norm(x + residual), whose sum goes to `total`.

    weight [outputs, WIDTH / 2], scale and zero [outputs, WIDTH / GROUP]: as `Stored`. GATE "silu" or "gelu": 2 *
    outputs rows (g, u), and out is activate(g) * u; a program then takes ROWS / 2 rows of each, in turn.
    """
    line = tl.arange(0, ROWS)
    GATED: tl.constexpr = GATE != ""
    TAKEN: tl.constexpr = ROWS // 2 if GATED else ROWS  # outputs
    GROUPS: tl.constexpr = WIDTH // GROUP
    first = tl.program_id(0) * TAKEN
    if GATED:
        row = first + line // 2
        exists = row < outputs
        row += line % 2 * outputs
    else:
        row = first + line
        exists = row < outputs
    at = weight_ptr + row.to(tl.int64) * (WIDTH // 2)
    scale_at = scale_ptr + row.to(tl.int64) * GROUPS
    zero_at = zero_ptr + row.to(tl.int64) * GROUPS
    tile = _bytes(at, exists, 0, WIDTH, COLUMNS)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    sums = tl.zeros([ROWS, COLUMNS // 32], tl.float32)
    squares = tl.zeros([COLUMNS // 32], tl.float32)
    byte = tl.arange(0, COLUMNS // 2)
    sixteen = tl.arange(0, COLUMNS // 32)
    for start in tl.static_range(0, WIDTH, COLUMNS):
        column = start + byte // 32 * 64 + byte % 32
        low_x, low_total = entering(x_ptr, residual_ptr, total_ptr, norm_ptr, column, first == 0, WIDTH, NORM)
        high_x, high_total = entering(x_ptr, residual_ptr, total_ptr, norm_ptr, column + 32, first == 0, WIDTH, NORM)
        low = (tile & 15).to(tl.float32) * low_x[None, :]
        high = (tile >> 4).to(tl.float32) * high_x[None, :]
        group = (start + sixteen // 2 * 64) // GROUP  # of these sixteen bytes' first columns
        if GROUP == 32:
            of_low = tl.sum(tl.reshape(low, [ROWS, COLUMNS // 32, 16]), 2)
            of_high = tl.sum(tl.reshape(high, [ROWS, COLUMNS // 32, 16]), 2)
            low_sum = tl.sum(tl.reshape(low_x, [COLUMNS // 32, 16]), 1)
            high_sum = tl.sum(tl.reshape(high_x, [COLUMNS // 32, 16]), 1)
            sums += _scaled(of_low, low_sum, scale_at, zero_at, exists, group, GROUPS, ZEROS)
            sums += _scaled(of_high, high_sum, scale_at, zero_at, exists, group + 1, GROUPS, ZEROS)
        else:
            both = tl.sum(tl.reshape(low + high, [ROWS, COLUMNS // 32, 16]), 2)
            of_x = tl.sum(tl.reshape(low_x + high_x, [COLUMNS // 32, 16]), 1)
            sums += _scaled(both, of_x, scale_at, zero_at, exists, group, GROUPS, ZEROS)
        if NORM:
            squared = low_total * low_total + high_total * high_total
            squares += tl.sum(tl.reshape(squared, [COLUMNS // 32, 16]), 1)
        if start + COLUMNS < WIDTH:
            tile = _bytes(at, exists, start + COLUMNS, WIDTH, COLUMNS)
    result = tl.sum(sums, 1)
    if NORM:
        result *= 1.0 / tl.sqrt(tl.sum(squares, 0) / WIDTH + eps)
    if BIAS:
        result += tl.load(bias_ptr + row, exists, other=0.0).to(tl.float32)
    if GATED:
        g, u = tl.split(tl.reshape(result, [TAKEN, 2]))
        result = activate(g, GATE == "gelu") * u
    place = first + tl.arange(0, TAKEN)
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), place < outputs)


def one_token(
    x: torch.Tensor, weight: Stored, bias: torch.Tensor | None, entry: Entry | None, gate: str, pdl: bool
) -> Pair:
    """x [1, in] -> (out [1, rows], or half of that with a gate, and x + residual)."""
    x, width = x.contiguous(), weight.cols
    outputs = weight.rows // 2 if gate else weight.rows
    out = torch.empty((1, outputs), dtype=x.dtype, device=x.device)
    total = x if entry is None else torch.empty_like(x)
    residual, norm, eps = (x, x, 0.0) if entry is None else (entry.residual, entry.norm_weight, entry.eps)
    columns = min(_COLUMNS, triton.next_power_of_2(width))
    taken = _ROWS // 2 if gate else _ROWS
    gemv4[(triton.cdiv(outputs, taken),)](
        out, total, x, residual, norm, weight.values, weight.scales,
        weight.zeros if len(weight.zeros) else weight.scales, weight.scales if bias is None else bias, eps, outputs,
        WIDTH=width, ROWS=_ROWS, COLUMNS=columns, GROUP=weight.group, ZEROS=len(weight.zeros) > 0,
        NORM=entry is not None, GATE=gate, BIAS=bias is not None, PDL=pdl, num_warps=_WARPS, launch_pdl=pdl,
    )  # fmt: skip
    return out, total

"""A linear map of one row, or two, alone or together with the norm before and the gate after it.

Bound by reading the weight once. A program takes ROWS rows of the weight and walks their columns in tiles; its threads
lie along the columns, so that every load is contiguous, and the sums across threads are taken once, at the end. No sum
is split over programs: a result is the same in every run.

With PDL a program begins while the kernel before it still runs: it fetches its first tile of the weight, which no
kernel writes, and then waits for what that kernel leaves.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.elementwise import activate

_MANY_ROWS = 1 << 15  # of a weight: the head of a language model
_MOST_BYTES_OF_TWO = 16 << 20  # of a weight that two tokens are multiplied by


@triton.jit
def _tile(at, exists, FIRST, WIDTH, COLUMNS, EVEN):
    """Columns [FIRST, FIRST + COLUMNS) of the rows that begin at `at` [ROWS], as stored; EVEN: all rows exist."""
    column = FIRST + tl.arange(0, COLUMNS)
    at = at[:, None] + column[None, :]
    if EVEN and FIRST + COLUMNS <= WIDTH:
        return tl.load(at, eviction_policy="evict_first")
    return tl.load(at, exists[:, None] & (column < WIDTH)[None, :], other=0.0, eviction_policy="evict_first")


@triton.jit
def entering(x_ptr, residual_ptr, total_ptr, norm_ptr, column, writes, WIDTH, NORM):
    """Columns of what is multiplied, but for the norm's common factor; and of the stream."""
    inside = column < WIDTH
    x = tl.load(x_ptr + column, inside, other=0.0).to(tl.float32)
    total = x
    if NORM:
        residual = tl.load(residual_ptr + column, inside, other=0.0).to(tl.float32)
        rounded = (x + residual).to(total_ptr.dtype.element_ty)  # the norm is taken of the sum as it is stored
        tl.store(total_ptr + column, rounded, inside & writes)
        total = rounded.to(tl.float32)
        x = total * tl.load(norm_ptr + column, inside, other=0.0).to(tl.float32)
    return x, total


@triton.jit
def rows_of(part, outputs, ROWS, GATED):
    """Of the weight, those of part number `part`: g and u of an output in turn -> rows [ROWS], which exist"""
    line = tl.arange(0, ROWS)
    if GATED:
        output = part * (ROWS // 2) + line // 2
        return output + line % 2 * outputs, output < outputs
    return part * ROWS + line, part * ROWS + line < outputs


@triton.jit
def store_outputs(out_ptr, bias_ptr, result, row, exists, part, outputs, GATE, BIAS):
    """result [ROWS], of what `rows_of` gave, and the bias of these rows -> outputs of the part; of g and u of an output
    activate(g) * u"""
    if BIAS:
        result += tl.load(bias_ptr + row, exists, other=0.0).to(tl.float32)
    TAKEN: tl.constexpr = result.shape[0] // 2 if GATE != "" else result.shape[0]
    if GATE != "":
        g, u = tl.split(tl.reshape(result, [TAKEN, 2]))
        result = activate(g, GATE == "gelu") * u
    place = part * TAKEN + tl.arange(0, TAKEN)
    tl.store(out_ptr + place, result.to(out_ptr.dtype.element_ty), place < outputs)


@quick
@triton.jit
def gemv(
    out_ptr, total_ptr, x_ptr, residual_ptr, norm_ptr, weight_ptr, scale_ptr, bias_ptr, eps, outputs, x_stride,
    TOKENS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, EVEN: tl.constexpr,
    NORM: tl.constexpr, GATE: tl.constexpr, SCALED: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [TOKENS, outputs] = weight times x; with NORM, times rms_norm(x + residual), whose sum goes to `total`.

    x [TOKENS, WIDTH] with rows x_stride apart; residual and total have no gaps. weight [outputs, WIDTH]. GATE "silu" or
    "gelu": weight [2 * outputs, WIDTH] = (g, u), and out is activate(g) * u; a program then takes ROWS / 2 rows of
    each, in turn. SCALED: each row of the weight is times its scale.
    """
    part = tl.program_id(0)
    row, exists = rows_of(part, outputs, ROWS, GATE != "")
    at = weight_ptr + row.to(tl.int64) * WIDTH
    tile = _tile(at, exists, 0, WIDTH, COLUMNS, EVEN)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    # Eight neighbouring columns lie in one thread: they are summed as they come.
    sums = ()  # of every token
    squares = ()
    for _ in tl.static_range(TOKENS):
        sums += (tl.zeros([ROWS, COLUMNS // 8], tl.float32),)
        squares += (tl.zeros([COLUMNS // 8], tl.float32),)
    for start in tl.static_range(0, WIDTH, COLUMNS):
        grown = ()
        grown_squares = ()
        for token in tl.static_range(TOKENS):
            x, total = entering(
                x_ptr + token * x_stride, residual_ptr + token * WIDTH, total_ptr + token * WIDTH, norm_ptr,
                start + tl.arange(0, COLUMNS), part == 0, WIDTH, NORM,
            )  # fmt: skip
            grown += (sums[token] + tl.sum(tl.reshape(tile.to(tl.float32) * x[None, :], [ROWS, COLUMNS // 8, 8]), 2),)
            if NORM:
                grown_squares += (squares[token] + tl.sum(tl.reshape(total * total, [COLUMNS // 8, 8]), 1),)
        sums = grown
        if NORM:
            squares = grown_squares
        if start + COLUMNS < WIDTH:
            tile = _tile(at, exists, start + COLUMNS, WIDTH, COLUMNS, EVEN)
    for token in tl.static_range(TOKENS):
        result = tl.sum(sums[token], 1)
        if NORM:
            result *= 1.0 / tl.sqrt(tl.sum(squares[token], 0) / WIDTH + eps)
        if SCALED:
            result *= tl.load(scale_ptr + row, exists, other=0.0)
        store_outputs(out_ptr + token * outputs, bias_ptr, result, row, exists, part, outputs, GATE, BIAS)


@dataclass(frozen=True, slots=True)
class Entry:
    """What enters a product besides x: the residual, and the norm taken of their sum."""

    residual: torch.Tensor  # [1, in]
    norm_weight: torch.Tensor  # [in]
    eps: float


class Room(NamedTuple):
    """Where a product goes, and what enters it; without a residual x stands for what is not read."""

    out: torch.Tensor  # [T, outputs]
    total: torch.Tensor  # [T, in]: x + residual
    residual: torch.Tensor
    norm_weight: torch.Tensor
    eps: float


def room_for(x: torch.Tensor, rows: int, entry: Entry | None, gate: str) -> Room:
    """x [T, in] times a matrix of so many rows; with a gate there are half as many outputs"""
    out = torch.empty((x.shape[0], rows // 2 if gate else rows), dtype=x.dtype, device=x.device)
    if entry is None:
        return Room(out, x, x, x, 0.0)
    total = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    return Room(out, total, entry.residual, entry.norm_weight, entry.eps)


def few_tokens(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    entry: Entry | None = None,
    gate: str = "",
    pdl: bool = False,
    tile: Tile | None = None,
    scales: torch.Tensor | None = None,
) -> Pair:
    """x [T, in], weight [rows, in] contiguous -> (out [T, rows], or half of that with a gate, and x + residual).
    scales [rows] float32: that rows of the weight are times."""
    x = x if x.stride(1) == 1 else x.contiguous()
    tokens = x.shape[0]
    rows, width = weight.shape
    out, total, residual, norm, eps = room_for(x, rows, entry, gate)
    outputs = out.shape[1]
    tile = tile or choose_tile(tokens, rows, width)
    taken = tile.rows // 2 if gate else tile.rows
    gemv[(triton.cdiv(outputs, taken),)](
        out, total, x, residual, norm, weight, weight if scales is None else scales,
        weight if bias is None else bias, eps, outputs, x.stride(0),
        TOKENS=tokens, WIDTH=width, ROWS=tile.rows, COLUMNS=tile.columns, EVEN=outputs % taken == 0,
        NORM=entry is not None, GATE=gate, SCALED=scales is not None, BIAS=bias is not None, PDL=pdl,
        num_warps=tile.warps, launch_pdl=pdl,
    )  # fmt: skip
    return out, total


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program holds of the weight at a time."""

    rows: int
    columns: int
    warps: int


def suits(tokens: int, weight: torch.Tensor) -> bool:
    """Whether these programs were the fastest: two tokens cost them more where reading the weight takes its time."""
    return tokens == 1 or (tokens == 2 and weight.shape[0] < _MANY_ROWS and weight.nbytes <= _MOST_BYTES_OF_TWO)


def choose_tile(tokens: int, rows: int, width: int) -> Tile:
    """What was fastest inside whole decode steps on an H200: many rows in single warps, which wait for no other; else
    enough programs for every processor, each with as much of a row at a time as its registers hold."""
    if rows >= _MANY_ROWS:
        return Tile(8, 256, 1)
    taken = 2 if rows <= 1024 and width >= 2048 else 4
    if tokens == 2 and width % 512:  # what is done for every token is shared by more rows
        taken = 8
    if width <= 1024:
        return Tile(taken, 512, 2) if width % 512 == 0 else Tile(taken, 1024, 4)
    if tokens == 2:
        return Tile(8 if width >= 2048 else 4, 2048, 4)
    if rows <= 4096 and width in (2048, 4096):
        return Tile(taken, 1024, 4)
    return Tile(taken, 2048, 4 if width <= 8192 else 8)

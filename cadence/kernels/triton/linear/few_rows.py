"""A linear map of some rows by a small weight, alone or together with the gate after it.

With up to a few hundred rows such a product is over in microseconds, and what surrounds it counts as much: these
programs are there before the kernel ahead of them has ended (PDL) and ask for the weight meanwhile, which no kernel
writes; and the gate costs no launch of its own.

The norm before it does: every program would have to read both parts of the stream and scale them on their way to the
product, which took longer than a kernel that does it once.

A product with few outputs has few programs, and each would read all of x. Where a norm comes next, K is split among
more programs, and the norm adds up what they leave.
"""

# ruff: noqa: N803 - capitals mark compile-time constants, also where they are not annotated
from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.fetch import fetch
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.elementwise import activate

_MOST_ROWS = 256
_MOST_BYTES = 16 << 20  # of a weight; larger ones keep the device busy
_PROCESSORS = 132  # of the GPU the choices were measured on


@quick
@triton.jit(do_not_specialize=["rows"])
def few_rows(
    out_ptr, x_ptr, weight_ptr, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr,
    GATE: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr, PIECES: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """out [TERMS, rows, outputs], whose sum is x [rows, WIDTH] times weight [outputs, WIDTH], of 16 bits.

    GATE "silu" or "gelu": weight [2 * outputs, WIDTH] = (g, u), out is activate(g) * u, and TERMS is 1. COLUMNS divides
    WIDTH // TERMS, OUTPUTS divides outputs. PIECES: how many its part of a weight row is fetched in ahead of time, one
    per thread.
    """
    PART: tl.constexpr = WIDTH // TERMS
    term = tl.program_id(2)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    column = term * PART + tl.arange(0, COLUMNS)
    exists = (row < rows)[:, None]
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    w_at = weight_ptr + output[None, :] * WIDTH + column[:, None]
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if PDL:
        gdc_launch_dependents()
        if GATE == "" and tl.program_id(1) == 0:  # a gated product has no use for it: it is not waiting for its weight
            LENGTH: tl.constexpr = PART // PIECES
            piece = tl.arange(0, OUTPUTS * PIECES)
            first = weight_ptr + tl.program_id(0) * OUTPUTS * WIDTH + term * PART
            fetch(first + piece // PIECES * WIDTH + piece % PIECES * LENGTH, 2 * LENGTH)
        gdc_wait()
    if GATE != "":
        up_at = w_at + outputs * WIDTH
        up = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for _ in range(0, WIDTH, COLUMNS):
            x = tl.load(x_at, exists, other=0.0)
            acc = tl.dot(x, tl.load(w_at), acc)
            up = tl.dot(x, tl.load(up_at), up)
            x_at += COLUMNS
            w_at += COLUMNS
            up_at += COLUMNS
        if BIAS:
            acc += tl.load(bias_ptr + output).to(tl.float32)[None, :]
            up += tl.load(bias_ptr + outputs + output).to(tl.float32)[None, :]
        acc = activate(acc, GATE == "gelu") * up
    else:
        for _ in range(0, PART, COLUMNS):
            acc = tl.dot(tl.load(x_at, exists, other=0.0), tl.load(w_at), acc)
            x_at += COLUMNS
            w_at += COLUMNS
        if BIAS and term == 0:
            acc += tl.load(bias_ptr + output).to(tl.float32)[None, :]
    place = out_ptr + (term * rows + row).to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), exists)


@triton.jit
def store_terms(out_ptr, bias_ptr, acc, term, row, output, rows, outputs, BIAS):
    """acc [OUTPUTS, ROWS], to which the first term adds the bias, -> out [terms, rows, outputs]"""
    exists, there = output < outputs, row < rows
    if BIAS and term == 0:
        acc += tl.load(bias_ptr + output, exists, other=0.0).to(tl.float32)[:, None]
    target = out_ptr + (term * rows + row).to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(target, acc.to(out_ptr.dtype.element_ty), exists[:, None] & there[None, :])


@dataclass(frozen=True, slots=True)
class FewTile:
    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int
    terms: int = 1  # how many ways K is split

    def grid(self, rows: int, outputs: int) -> tuple[int, int, int]:
        return triton.cdiv(outputs, self.outputs), triton.cdiv(rows, self.rows), self.terms

    def room(self, rows: int, outputs: int, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """[rows, outputs], or [terms, rows, outputs] where there are several"""
        size = (rows, outputs) if self.terms == 1 else (self.terms, rows, outputs)
        return torch.empty(size, dtype=dtype, device=device)


def in_terms(tile: FewTile, rows: int, outputs: int, cols: int, most_terms: int) -> FewTile:
    """With K split among as many programs as are busy at once, two to a processor."""
    programs, terms = outputs // tile.outputs * triton.cdiv(rows, tile.rows), 1
    while terms < most_terms and 2 * terms * programs <= 2 * _PROCESSORS and cols % (2 * terms * tile.columns) == 0:
        terms *= 2
    return replace(tile, terms=terms)


# Each in the order in which they are tried: the first that fits the weight and has no more programs than processors.
_PLAIN = (
    FewTile(64, 32, 256, 4, 3),
    FewTile(64, 64, 128, 4, 4),
    FewTile(128, 64, 128, 8, 3),
    FewTile(64, 64, 64, 4, 5),
)
_LONG_ROWS = FewTile(64, 32, 128, 4, 5)  # comes before the others where a row is long
_LONG = 2048
_GATED = (FewTile(64, 32, 128, 4, 4),)
# Where a gate saves a kernel, more programs than processors still pay: up to twice as many of the first.
_GATED_FEW = FewTile(64, 32, 64, 4, 5)
_GATED_MANY = FewTile(128, 64, 64, 8, 4)
# Where K may be split, by the most rows that each is for; the first whose number of terms fits.
_SPLIT = (
    (64, FewTile(64, 32, 128, 4, 5, terms=4)),
    (64, FewTile(64, 32, 64, 4, 5, terms=3)),
    (128, FewTile(64, 64, 128, 4, 4, terms=4)),
    (128, FewTile(64, 64, 64, 4, 5, terms=3)),
)


def choose_few(rows: int, weight: torch.Tensor, gated: bool) -> FewTile | None:
    """What was fastest inside a layer on an H200; None: a library's product is."""
    outputs, width = weight.shape
    if rows > _MOST_ROWS or weight.nbytes > _MOST_BYTES or weight.element_size() != 2:
        return None
    if gated:
        outputs //= 2
    tiles = _GATED if gated else (_LONG_ROWS, *_PLAIN) if width >= _LONG else _PLAIN
    for tile in tiles:
        if _fits(tile, outputs, width) and _programs(rows, outputs, tile) <= _PROCESSORS:
            return tile
    if not gated:
        return None
    tile = _GATED_FEW if _programs(rows, outputs, _GATED_FEW) <= 2 * _PROCESSORS else _GATED_MANY
    return tile if _fits(tile, outputs, width) else None


def choose_split(rows: int, weight: torch.Tensor) -> FewTile | None:
    """As `choose_few`, where the sum may be left in terms; None: it is not worth it."""
    outputs, width = weight.shape
    if weight.nbytes > _MOST_BYTES or weight.element_size() != 2:
        return None
    for most, tile in _SPLIT:
        if rows <= most and _fits(tile, outputs, width) and _programs(rows, outputs, tile) <= _PROCESSORS:
            return tile
    return None


def _fits(tile: FewTile, outputs: int, width: int) -> bool:
    return width % (tile.terms * tile.columns) == 0 and outputs % tile.outputs == 0


def _programs(rows: int, outputs: int, tile: FewTile) -> int:
    return math.prod(tile.grid(rows, outputs))


def linear_few(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tile: FewTile, gate: str, pdl: bool
) -> torch.Tensor:
    """x [T, in], weight [out, in] contiguous -> [T, out], or half of that with a gate ("silu" or "gelu"); a tile with
    terms: [terms, T, out], which are to be added up."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    outputs = weight.shape[0] // 2 if gate else weight.shape[0]
    out = tile.room(rows, outputs, x.dtype, x.device)
    few_rows[tile.grid(rows, outputs)](
        out, x, weight, weight if bias is None else bias, rows, outputs, x.stride(0),
        WIDTH=width, ROWS=tile.rows, OUTPUTS=tile.outputs, COLUMNS=tile.columns,
        GATE=gate, BIAS=bias is not None, PDL=pdl, PIECES=32 * tile.warps // tile.outputs, TERMS=tile.terms,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out

"""A linear map of a handful of rows, alone or together with the gate after it.

Bound by reading the weight once, as that of one row; but several products per element of the weight are too many for
the plain units, so the tensor cores take them: the weight is their left side, sixteen of its rows at a time, and the
rows of x are the few columns of their right side. A program is a single warp, which waits for no other.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.fetch import fetch
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.elementwise import activate

MOST_ROWS = 16
_MANY_OUTPUTS = 1 << 15  # the head of a language model
_LONG = 1024  # columns
_MOST_GATED_BYTES = 16 << 20  # of a weight; beyond, two streams of it in one program are slower than a kernel more


@quick
@triton.jit(do_not_specialize=["rows"])
def skinny(
    out_ptr, x_ptr, weight_ptr, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, STAGES: tl.constexpr,
    AHEAD: tl.constexpr, GATE: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, WIDTH] times weight [outputs, WIDTH]; rows <= ROWS.

    GATE "silu" or "gelu": weight [2 * outputs, WIDTH] = (g, u), and out is activate(g) * u. COLUMNS divides WIDTH,
    OUTPUTS divides outputs. AHEAD: how many columns of its rows a program asks for before the kernel ahead has ended.
    """
    row = tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.arange(0, COLUMNS)
    exists = (row < rows)[None, :]
    x_at = x_ptr + row[None, :] * x_stride + column[:, None]
    w_at = weight_ptr + output.to(tl.int64)[:, None] * WIDTH + column[None, :]
    up_at = w_at + tl.cast(outputs, tl.int64) * WIDTH
    if PDL:
        gdc_launch_dependents()
        if AHEAD:
            PIECES: tl.constexpr = 32 // OUTPUTS  # of a row; one is fetched by each thread
            LENGTH: tl.constexpr = AHEAD // PIECES
            piece = tl.arange(0, 32)
            asked = (tl.program_id(0) * OUTPUTS + piece // PIECES).to(tl.int64)
            fetch(weight_ptr + asked * WIDTH + piece % PIECES * LENGTH, 2 * LENGTH)
            if GATE != "":
                fetch(weight_ptr + (outputs + asked) * WIDTH + piece % PIECES * LENGTH, 2 * LENGTH)
        gdc_wait()
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    up = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for _ in tl.range(0, WIDTH, COLUMNS, num_stages=STAGES):
        x = tl.load(x_at, exists, other=0.0)
        acc = tl.dot(tl.load(w_at, eviction_policy="evict_first"), x, acc)
        if GATE != "":
            up = tl.dot(tl.load(up_at, eviction_policy="evict_first"), x, up)
        x_at += COLUMNS
        w_at += COLUMNS
        up_at += COLUMNS
    if BIAS:
        acc += tl.load(bias_ptr + output).to(tl.float32)[:, None]
    if GATE != "":
        if BIAS:
            up += tl.load(bias_ptr + outputs + output).to(tl.float32)[:, None]
        acc = activate(acc, GATE == "gelu") * up
    place = out_ptr + row[None, :] * outputs + output[:, None]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), exists)


@dataclass(frozen=True, slots=True)
class SkinnyTile:
    columns: int
    stages: int
    ahead: int


_OUTPUTS = 16  # of a program: the tensor cores take no fewer
_SHORT_ROWS = SkinnyTile(64, 9, 512)
_LONG_ROWS = SkinnyTile(256, 4, 0)  # enough programs of them are under way to keep the memory busy


def choose_skinny(rows: int, weight: torch.Tensor, gated: bool) -> SkinnyTile | None:
    """What was fastest on an H200; None: another product is."""
    outputs, width = weight.shape
    if not 1 < rows <= MOST_ROWS or weight.element_size() != 2 or (outputs // 2 if gated else outputs) % _OUTPUTS:
        return None
    if gated and weight.nbytes > _MOST_GATED_BYTES:
        return None
    tile = _LONG_ROWS if width >= _LONG else _SHORT_ROWS
    if width % tile.columns or width < tile.ahead or (tile is _SHORT_ROWS and outputs >= _MANY_OUTPUTS):
        return None
    return tile


def linear_skinny(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, tile: SkinnyTile, gate: str, pdl: bool
) -> torch.Tensor:
    """x [T, in], weight [out, in] contiguous -> [T, out], or half of that with a gate ("silu" or "gelu")."""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, width = x.shape
    outputs = weight.shape[0] // 2 if gate else weight.shape[0]
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    skinny[(outputs // _OUTPUTS,)](
        out, x, weight, weight if bias is None else bias, rows, outputs, x.stride(0),
        WIDTH=width, ROWS=8 if rows <= 8 else 16, OUTPUTS=_OUTPUTS, COLUMNS=tile.columns, STAGES=tile.stages,
        AHEAD=tile.ahead, GATE=gate, BIAS=bias is not None, PDL=pdl, num_warps=1, launch_pdl=pdl,
    )  # fmt: skip
    return out

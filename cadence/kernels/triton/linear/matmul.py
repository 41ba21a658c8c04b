"""A linear map whose every row has the same bits whatever rows come with it: fixed tiles, columns in one order."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick


@quick
@triton.jit(do_not_specialize=["rows"])
def matmul(
    out_ptr, x_ptr, weight_ptr, bias_ptr, rows, outputs, x_stride,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, OUTPUTS: tl.constexpr, COLUMNS: tl.constexpr, BAND: tl.constexpr,
    BIAS: tl.constexpr, PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """out [rows, outputs] = x [rows, WIDTH] times weight [outputs, WIDTH]. No sum is split.

    Programs go through the tiles of out in bands of BAND tiles of rows, so that what they share stays in the cache.
    """
    program = tl.program_id(0)
    tall = tl.cdiv(rows, ROWS)
    wide = tl.cdiv(outputs, OUTPUTS)
    band = program // (BAND * wide)
    height = tl.minimum(tall - band * BAND, BAND)
    inside_band = program % (BAND * wide)
    row = (band * BAND + inside_band % height) * ROWS + tl.arange(0, ROWS)
    output = inside_band // height * OUTPUTS + tl.arange(0, OUTPUTS)
    column = tl.arange(0, COLUMNS)
    x_at = x_ptr + row.to(tl.int64)[:, None] * x_stride + column[None, :]
    # Outputs beyond the end are those of the last one, and not stored.
    w_at = weight_ptr + tl.minimum(output, outputs - 1).to(tl.int64)[None, :] * WIDTH + column[:, None]
    acc = tl.zeros([ROWS, OUTPUTS], tl.float32)
    if PDL:
        gdc_wait()
    for start in range(0, WIDTH, COLUMNS):
        if WIDTH % COLUMNS == 0:
            x = tl.load(x_at, (row < rows)[:, None], other=0.0)
            w = tl.load(w_at)
        else:
            x = tl.load(x_at, (row < rows)[:, None] & (start + column < WIDTH)[None, :], other=0.0)
            w = tl.load(w_at, (start + column < WIDTH)[:, None], other=0.0)
        acc = tl.dot(x, w, acc, input_precision=PRECISION)
        x_at += COLUMNS
        w_at += COLUMNS
    if PDL:  # not before: what comes next would take the room of programs that have yet to begin
        gdc_launch_dependents()
    if BIAS:
        acc += tl.load(bias_ptr + output, output < outputs, other=0.0).to(tl.float32)[None, :]
    place = out_ptr + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(place, acc.to(out_ptr.dtype.element_ty), (row < rows)[:, None] & (output < outputs)[None, :])


def fixed_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    pdl: bool = False,
    memory: int = 0,
    tiles: Tiles | None = None,
) -> torch.Tensor:
    """x [T, in], weight [out, in] contiguous -> [T, out]. memory: bytes that a program may share, if that is known"""
    x = x if x.stride(1) == 1 else x.contiguous()
    rows, (outputs, width) = x.shape[0], weight.shape
    out = torch.empty((rows, outputs), dtype=x.dtype, device=x.device)
    tiles = tiles or choose_tiles(rows, outputs, x.dtype, memory)
    grid = (triton.cdiv(rows, tiles.rows) * triton.cdiv(outputs, tiles.outputs),)
    matmul[grid](
        out, x, weight, weight if bias is None else bias, rows, outputs, x.stride(0),
        WIDTH=width, ROWS=tiles.rows, OUTPUTS=tiles.outputs, COLUMNS=tiles.columns, BAND=8,
        BIAS=bias is not None, PRECISION="ieee" if x.dtype is torch.float32 else "tf32",
        PDL=pdl,
        num_warps=tiles.warps, num_stages=tiles.stages, launch_pdl=pdl,
    )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class Tiles:
    rows: int
    outputs: int
    columns: int
    warps: int
    stages: int


_FLOAT32 = Tiles(32, 32, 32, 4, 3)
_MANY_OUTPUTS = 16384
_FEW_OUTPUTS = 132 * 32  # of which each processor of the GPU that the choices were measured on has 32
_DEEP_BYTES = 196608  # of shared memory, for tiles that ask for much at a time


def choose_tiles(rows: int, outputs: int, dtype: torch.dtype, memory: int = 0) -> Tiles:
    """All tiles of one dtype go through the same matrix instruction, column after column: they give the same bits."""
    if dtype is torch.float32:
        return _FLOAT32
    if rows <= 64 and memory >= _DEEP_BYTES:
        if outputs >= _MANY_OUTPUTS:
            return Tiles(64, 128, 128, 4, 4)
        return Tiles(64, 64, 128, 4, 6) if outputs > _FEW_OUTPUTS else Tiles(64, 32, 256, 4, 4)
    if rows <= 64:
        return Tiles(64, 128, 64, 4, 4) if outputs >= _MANY_OUTPUTS else Tiles(64, 32, 128, 4, 4)
    if rows <= 256 and outputs < _MANY_OUTPUTS:
        return Tiles(64, 128, 64, 4, 4)
    return Tiles(128, 256, 64, 8, 3)

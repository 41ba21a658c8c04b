"""Activations in eight bits, a scale for each row: alone, after the norm that makes them, or after the gate.

What a norm or a gate makes is rounded to the type of the model first, so that it does not matter who rounds.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.matrix import Norm
from cadence.kernels.interface.ops import Pair
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.linear.elementwise import activate, added_norm

_MOST = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}  # the largest number of each kind
_ROUNDING: tl.constexpr = tl.constexpr(12582912.0)  # 1.5 * 2^23: what is added to it keeps no fraction


@triton.jit
def _store_row(out_ptr, scale_ptr, row, column, x, WIDTH: tl.constexpr, MOST: tl.constexpr):
    """x [WIDTH_PAD] float32, 0 beyond WIDTH: its largest becomes MOST."""
    scale = tl.maximum(tl.max(tl.abs(x), 0), 1e-10) / MOST
    scaled = x / scale
    if out_ptr.dtype.element_ty == tl.int8:
        scaled = (scaled + _ROUNDING) - _ROUNDING
    tl.store(out_ptr + row * WIDTH + column, scaled.to(out_ptr.dtype.element_ty), column < WIDTH)
    tl.store(scale_ptr + row, scale)


@quick
@triton.jit
def quantize(
    out_ptr, scale_ptr, x_ptr, x_stride, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, MOST: tl.constexpr,
    GATE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A row of x a program. GATE "silu" or "gelu": x [T, 2 * WIDTH] = (g, u), and activate(g) * u is what is taken."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, WIDTH_PAD)
    inside = column < WIDTH
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(x_ptr + row * x_stride + column, inside, other=0.0).to(tl.float32)
    if GATE != "":
        up = tl.load(x_ptr + row * x_stride + WIDTH + column, inside, other=0.0).to(tl.float32)
        x = (activate(x, GATE == "gelu") * up).to(x_ptr.dtype.element_ty).to(tl.float32)
    _store_row(out_ptr, scale_ptr, row, column, x, WIDTH, MOST)


@quick
@triton.jit
def add_norm_quantize(
    out_ptr, scale_ptr, total_ptr, x_ptr, residual_ptr, weight_ptr, eps, term_size,
    WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, TERMS: tl.constexpr, MOST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`add_rms_norm` of `elementwise`, and its result in eight bits."""
    row, column = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH_PAD)
    normed = added_norm(total_ptr, x_ptr, residual_ptr, weight_ptr, row, column, eps, term_size, WIDTH, TERMS, PDL)
    normed = normed.to(total_ptr.dtype.element_ty).to(tl.float32)
    _store_row(out_ptr, scale_ptr, row, column, normed, WIDTH, MOST)


def quantized_rows(x: torch.Tensor, kind: torch.dtype, pdl: bool, gate: str = "") -> Pair:
    """x [T, in], or [T, 2 * in] with a gate -> [T, in] float8_e4m3fn or int8, scales [T, 1] float32"""
    x = x if x.stride(1) == 1 else x.contiguous()
    width = x.shape[1] // 2 if gate else x.shape[1]
    out, scales = _empty(x.shape[0], width, kind, x.device)
    padded = triton.next_power_of_2(width)
    quantize[(x.shape[0],)](
        out, scales, x, x.stride(0), WIDTH=width, WIDTH_PAD=padded, MOST=_MOST[kind], GATE=gate, PDL=pdl,
        num_warps=_warps(padded), launch_pdl=pdl,
    )  # fmt: skip
    return out, scales


def normed_rows(stream: Pair, norm: Norm, kind: torch.dtype, pdl: bool) -> tuple[Pair, torch.Tensor]:
    """stream = (x, or terms of it, residual) -> (rms_norm(x + residual) as `quantized_rows`, x + residual)"""
    x, residual, (weight, eps) = stream[0].contiguous(), stream[1].contiguous(), norm
    rows, width = residual.shape
    out, scales = _empty(rows, width, kind, x.device)
    total = torch.empty_like(residual)
    padded = triton.next_power_of_2(width)
    add_norm_quantize[(rows,)](
        out, scales, total, x, residual, weight, eps, residual.numel(),
        WIDTH=width, WIDTH_PAD=padded, TERMS=x.shape[0] if x.dim() == 3 else 1, MOST=_MOST[kind], PDL=pdl,
        num_warps=_warps(padded), launch_pdl=pdl,
    )  # fmt: skip
    return (out, scales), total


def _empty(rows: int, width: int, kind: torch.dtype, device: torch.device) -> Pair:
    out = torch.empty((rows, width), dtype=kind, device=device)
    return out, torch.empty((rows, 1), dtype=torch.float32, device=device)


def _warps(padded: int) -> int:
    """As `ops` has them for norms: sums of one row come in one order."""
    return 4 if padded <= 2048 else 8 if padded <= 8192 else 16

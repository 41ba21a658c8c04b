"""What comes after a layer's state: a gate, alone or with a norm."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.triton.common.launch import quick

_NORM_ELEMENTS = 1024  # that one program takes at least, in whole groups
_GATE_BLOCK = 1024


@quick
@triton.jit
def _gated_norm(
    out_ptr, x_ptr, gate_ptr, weight_ptr, x_stride, gate_stride, eps,
    WIDTH: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, GROUPS: tl.constexpr, SHARED: tl.constexpr,
    NORM_FIRST: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per GROUPS groups of a token. SHARED: one weight [GROUP] for all groups."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, GROUP_PAD)[None, :]
    first = (tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)[:, None]) * GROUP
    column = first + place
    inside = (place < GROUP) & (first < WIDTH)
    weight = tl.load(weight_ptr + (place if SHARED else column), mask=inside, other=0.0).to(tl.float32)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + column, mask=inside, other=0.0).to(tl.float32)
    gate *= tl.sigmoid(gate)
    if not NORM_FIRST:
        x *= gate
    result = x * (1.0 / tl.sqrt(tl.sum(x * x, 1) / GROUP + eps))[:, None] * weight
    if NORM_FIRST:
        result *= gate
    tl.store(out_ptr + token * WIDTH + column, result.to(out_ptr.dtype.element_ty), mask=inside)


@quick
@triton.jit
def _gate(
    out_ptr, x_ptr, gate_ptr, x_stride, gate_stride,
    WIDTH: tl.constexpr, ONE_GATE: tl.constexpr, BLOCK: tl.constexpr, BEND: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """BEND: of the gate, "" | "silu" | "sigmoid". ONE_GATE: of a token."""
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    x = tl.load(x_ptr + token * x_stride + column, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + token * gate_stride + (column * 0 if ONE_GATE else column), mask=inside, other=0.0).to(
        tl.float32
    )
    if BEND == "silu":
        gate *= tl.sigmoid(gate)
    if BEND == "sigmoid":
        gate = tl.sigmoid(gate)
    tl.store(out_ptr + token * WIDTH + column, (x * gate).to(out_ptr.dtype.element_ty), mask=inside)


def gated_norm(
    x: torch.Tensor, gate: torch.Tensor, weight: torch.Tensor, eps: float, group: int, norm_first: bool, pdl: bool
) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    padded = triton.next_power_of_2(group)
    groups = max(min(_NORM_ELEMENTS // padded, triton.next_power_of_2(width // group)), 1)
    _gated_norm[(tokens, triton.cdiv(width, groups * group))](
        out, x, gate, weight, x.stride(0), gate.stride(0), eps,
        WIDTH=width, GROUP=group, GROUP_PAD=padded, GROUPS=groups, SHARED=weight.shape[0] != width,
        NORM_FIRST=norm_first, PDL=pdl, num_warps=_warps(padded * groups), launch_pdl=pdl,
    )  # fmt: skip
    return out


def gate_by(x: torch.Tensor, gate: torch.Tensor, bend: str, pdl: bool) -> torch.Tensor:
    tokens, width = x.shape
    out = torch.empty((tokens, width), dtype=x.dtype, device=x.device)
    _gate[(tokens, triton.cdiv(width, _GATE_BLOCK))](
        out, x, gate, x.stride(0), gate.stride(0),
        WIDTH=width, ONE_GATE=gate.shape[1] != width, BLOCK=_GATE_BLOCK, BEND=bend, PDL=pdl, launch_pdl=pdl,
    )  # fmt: skip
    return out


def _warps(elements: int) -> int:
    return 4 if elements <= 2048 else 8 if elements <= 8192 else 16

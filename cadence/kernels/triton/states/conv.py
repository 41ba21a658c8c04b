"""Short convolutions: each channel by itself, over the last few tokens of a row.

What a row has seen lies in one line of places, numbered from 0: its last TAPS - 1 inputs, the kept ones that are
replayed, then the tokens of the run. A token's result is of the TAPS places that end with it, and what is to be in the
table afterwards are places, too: those from `replayed + certain` on.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import find_run

_SINGLE_BLOCK = 512  # channels
_SPAN = 32  # tokens of a run that a program takes
_SPAN_BLOCK = 128  # channels that it takes
_FEW_TOKENS = 8  # longest run of which a program takes this many


@triton.jit
def _bend(total, SILU: tl.constexpr):
    return total * tl.sigmoid(total) if SILU else total


@quick
@triton.jit
def _conv_single(
    out_ptr, x_ptr, weight_ptr, bias_ptr, inputs_ptr, rows_ptr, replayed_ptr, certain_ptr,
    x_stride, row_stride, weight_stride, tap_stride,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, BLOCK: tl.constexpr,
    SILU: tl.constexpr, BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per block of channels and run of one token."""
    run = tl.program_id(1)
    channel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < CHANNELS
    replayed, certain = tl.load(replayed_ptr + run), tl.load(certain_ptr + run)
    table = inputs_ptr + tl.load(rows_ptr + run).to(tl.int64) * row_stride + channel
    total = tl.zeros([BLOCK], tl.float32)
    if BIAS:
        total = tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    seen = ()
    weights = ()
    for tap in tl.static_range(TAPS):
        weight_at = weight_ptr + channel * weight_stride + tap * tap_stride
        weights += (tl.load(weight_at, mask=inside, other=0.0).to(tl.float32),)
        if tap < TAPS - 1:  # of the row's inputs, known since the forward began
            seen += (tl.load(table + (replayed + tap) * CHANNELS, mask=inside, other=0.0),)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    seen += (tl.load(x_ptr + run.to(tl.int64) * x_stride + channel, mask=inside, other=0.0),)
    for tap in tl.static_range(TAPS):
        total = tl.fma(weights[tap], seen[tap].to(tl.float32), total)
    result = _bend(total, SILU)
    tl.store(out_ptr + run.to(tl.int64) * CHANNELS + channel, result.to(out_ptr.dtype.element_ty), mask=inside)
    tl.debug_barrier()  # all of the table is read
    for tap in tl.static_range(TAPS - 1):
        tl.store(table + tap * CHANNELS, seen[tap + 1], mask=inside & (certain > 0))


@quick
@triton.jit(do_not_specialize=["first_run", "num_runs"])
def _conv_spans(
    out_ptr, x_ptr, weight_ptr, bias_ptr, inputs_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, kept_ptr,
    x_stride, row_stride, weight_stride, tap_stride, first_run, num_runs,
    CHANNELS: tl.constexpr, TAPS: tl.constexpr, LINES: tl.constexpr, LINES_PAD: tl.constexpr, SPAN: tl.constexpr,
    BLOCK: tl.constexpr, SILU: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """A program per block of channels and span of a run; the first of a run reads and writes the row's inputs. LINES:
    of a row's inputs. SPAN is at least TAPS - 1: only a first span sees any of them."""
    run, span = find_run(start_ptr, tl.program_id(1), first_run, num_runs, first_run, SPAN, 1)
    begin = tl.load(start_ptr + run)
    length = tl.load(start_ptr + run + 1) - begin
    if span * SPAN >= length:
        return
    replayed, certain, kept = tl.load(replayed_ptr + run), tl.load(certain_ptr + run), tl.load(kept_ptr + run)
    channel = (tl.program_id(0) * BLOCK + tl.arange(0, BLOCK))[None, :]
    inside = channel < CHANNELS
    x_at = x_ptr + begin.to(tl.int64) * x_stride + channel
    table = inputs_ptr + tl.load(rows_ptr + run).to(tl.int64) * row_stride + channel
    token = (span * SPAN + tl.arange(0, SPAN))[:, None]
    before = TAPS - 1 + replayed  # places before the run

    total = tl.zeros([SPAN, BLOCK], tl.float32)
    if BIAS:
        total += tl.load(bias_ptr + channel, mask=inside, other=0.0).to(tl.float32)
    for tap in tl.static_range(TAPS):
        at = token + (tap - (TAPS - 1))
        seen = tl.load(x_at + at.to(tl.int64) * x_stride, mask=inside & (at >= 0) & (at < length), other=0.0)
        if span == 0:
            seen += tl.load(table + (before + at) * CHANNELS, mask=inside & (at < 0), other=0.0)
        weight_at = weight_ptr + channel * weight_stride + tap * tap_stride
        weight = tl.load(weight_at, mask=inside, other=0.0).to(tl.float32)
        total = tl.fma(tl.broadcast_to(weight, [SPAN, BLOCK]), seen.to(tl.float32), total)
    out_at = out_ptr + (begin + token).to(tl.int64) * CHANNELS + channel
    tl.store(out_at, _bend(total, SILU).to(out_ptr.dtype.element_ty), mask=inside & (token < length))

    if span == 0:
        line = tl.arange(0, LINES_PAD)[:, None]
        place = replayed + certain + line
        moves = inside & (line < TAPS - 1 + kept) & (line < LINES) & (certain > 0)
        new = tl.load(table + place * CHANNELS, mask=moves & (place < before), other=0.0)
        new += tl.load(x_at + (place - before).to(tl.int64) * x_stride, mask=moves & (place >= before), other=0.0)
        tl.debug_barrier()  # all of the table is read
        tl.store(table + line * CHANNELS, new, mask=moves)


def short_conv(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inputs: torch.Tensor,
    runs: StateRuns,
    *,
    silu: bool,
    pdl: bool,
) -> torch.Tensor:
    """`StateOps.short_conv`: the same bits whichever kernel takes a run."""
    channels, taps = weight.shape
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    single, num_runs = runs.num_single, runs.rows.shape[0]
    filled = weight if bias is None else bias
    if single:
        block = min(_SINGLE_BLOCK, triton.next_power_of_2(channels))
        _conv_single[(triton.cdiv(channels, block), single)](
            out, x, weight, filled, inputs, runs.rows, runs.replayed, runs.certain,
            x.stride(0), inputs.stride(0), weight.stride(0), weight.stride(1),
            CHANNELS=channels, TAPS=taps, BLOCK=block, SILU=silu, BIAS=bias is not None, PDL=pdl,
            num_warps=4, enable_fp_fusion=False, launch_pdl=pdl,
        )  # fmt: skip
    if single < num_runs:
        least = _FEW_TOKENS if runs.max_query_len <= _FEW_TOKENS else _SPAN
        span = max(least, triton.next_power_of_2(max(taps - 1, 1)))
        block, lines = min(_SPAN_BLOCK, triton.next_power_of_2(channels)), inputs.shape[1]
        slots = (x.shape[0] - single) // span + num_runs - single
        _conv_spans[(triton.cdiv(channels, block), slots)](
            out, x, weight, filled, inputs, runs.rows, runs.query_start, runs.replayed, runs.certain, runs.kept,
            x.stride(0), inputs.stride(0), weight.stride(0), weight.stride(1), single, num_runs - single,
            CHANNELS=channels, TAPS=taps, LINES=lines, LINES_PAD=triton.next_power_of_2(max(lines, 1)), SPAN=span,
            BLOCK=block, SILU=silu, BIAS=bias is not None, num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return out

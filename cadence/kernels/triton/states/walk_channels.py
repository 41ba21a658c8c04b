"""Mamba, token by token: a program has a block of channels, for all that they are written and read by."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.state_ops import Scan, StateTable
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import part_of, read, softplus, write
from cadence.kernels.triton.states.tiles import WalkTile
from cadence.kernels.triton.states.walk import Walk, row_words


@triton.jit
def _take_in(state, x, dt, b, a, dt_bias):
    """state and a [WIDTH, BLOCK], x, dt and dt_bias [BLOCK], b [WIDTH], float32 all"""
    dt = softplus(dt + dt_bias)
    return tl.fma(state, tl.exp(dt[None, :] * a), b[:, None] * (dt * x)[None, :])


@triton.jit
def _result(state, x, c, d):
    return tl.fma(d, x, tl.sum(state * c[:, None], 0))


@triton.jit
def _token(
    token, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, channel_in, width_in, EVEN: tl.constexpr
):  # fmt: skip
    token = tl.cast(token, tl.int64)
    x = read(x_at + token * x_token, channel_in, EVEN)
    dt = read(dt_at + token * dt_token, channel_in, EVEN)
    return x, dt, read(b_at + token * b_token, width_in, EVEN), read(c_at + token * c_token, width_in, EVEN)


@triton.jit
def _walk(
    state, begin, end, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, a, d, dt_bias,
    channel_in, width_in, OUT_TOKEN: tl.constexpr, AHEAD: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Tokens [begin, end), of which the next AHEAD are loaded while as many before them are taken in."""
    loaded = ()
    for place in tl.static_range(AHEAD):
        loaded += (
            _token(
                tl.maximum(tl.minimum(begin + place, end - 1), 0), x_at, dt_at, b_at, c_at,
                x_token, dt_token, b_token, c_token, channel_in, width_in, EVEN,
            ),
        )  # fmt: skip
    for first in range(begin, end, AHEAD):
        ahead = ()
        for place in tl.static_range(AHEAD):
            ahead += (
                _token(
                    tl.minimum(first + AHEAD + place, end - 1), x_at, dt_at, b_at, c_at,
                    x_token, dt_token, b_token, c_token, channel_in, width_in, EVEN,
                ),
            )  # fmt: skip
        for place in tl.static_range(AHEAD):
            x, dt, b, c = loaded[place]
            there = first + place < end
            taken = _take_in(state, x, dt, b, a, dt_bias)
            state = tl.where(there, taken, state)
            out = out_at + tl.cast(first + place, tl.int64) * OUT_TOKEN
            tl.store(out, _result(taken, x, c, d).to(out.dtype.element_ty), mask=channel_in & there)
        loaded = ahead
    return state


@quick
@triton.jit(do_not_specialize=["first_run", "most_tokens"])
def _walk_channels(
    out_ptr, x_ptr, dt_ptr, b_ptr, c_ptr, a_ptr, d_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, x_token, dt_token, b_token, c_token,
    CHANNELS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
    EVEN: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per run and block of channels. WIDTH: of b and c. SINGLE: runs of one token, the first of them at
    token 0."""
    run = first_run + tl.program_id(1)
    channel, width = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH_PAD)
    channel_in, width_in = channel < CHANNELS, width < WIDTH
    row = tl.load(rows_ptr + run).to(tl.int64)
    replayed, certain = tl.load(replayed_ptr + run), tl.load(certain_ptr + run)
    begin, end = run, run + 1
    stored, first = certain > 0, begin
    if not SINGLE:
        begin, end = tl.load(start_ptr + run), tl.load(start_ptr + run + 1)
        first, replayed, stored = part_of(begin, end, replayed, certain, most_tokens)
        if first == end:
            return
    # States, like runs, are as they were when the forward began: there is nothing to wait for.
    place = width[:, None] * CHANNELS + channel[None, :]
    inside = width_in[:, None] & channel_in[None, :]
    state_at = state_ptr + row * state_row + place
    state, a = read(state_at, inside, EVEN), read(a_ptr + place, inside, EVEN)
    d, dt_bias = read(d_ptr + channel, channel_in, EVEN), read(bias_ptr + channel, channel_in, EVEN)
    kept_at = kept_ptr + row * kept_row
    for line in range(replayed):
        line_at = kept_at + line * kept_line
        x = read(line_at + channel, channel_in, EVEN)
        dt = read(line_at + CHANNELS + channel, channel_in, EVEN)
        state = _take_in(state, x, dt, read(line_at + 2 * CHANNELS + width, width_in, EVEN), a, dt_bias)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    out_at, x_at, dt_at = out_ptr + channel, x_ptr + channel, dt_ptr + channel
    b_at, c_at = b_ptr + width, c_ptr + width
    if SINGLE:
        x, dt, b, c = _token(
            run, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, channel_in, width_in, EVEN
        )  # fmt: skip
        state = _take_in(state, x, dt, b, a, dt_bias)
        write(out_at + tl.cast(run, tl.int64) * CHANNELS, _result(state, x, c, d), channel_in, EVEN)
        if stored:
            write(state_at, state, inside, EVEN)
    else:
        state = _walk(
            state, first, begin + certain, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
            a, d, dt_bias, channel_in, width_in, CHANNELS, AHEAD, EVEN,
        )  # fmt: skip
        if stored:
            write(state_at, state, inside, EVEN)
        _walk(
            state, begin + certain, end, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
            a, d, dt_bias, channel_in, width_in, CHANNELS, 1, EVEN,
        )  # fmt: skip


def walk_channels(
    out: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    layer: Scan,
    table: StateTable,
    walk: Walk,
    tile: WalkTile,
    pdl: bool,
) -> None:
    """inputs = x and dt [T, D], b and c [T, N] -> out [T, D], of the walk's runs."""
    channels, width = inputs[0].shape[1], inputs[2].shape[1]
    early = walk.begins_early(pdl)
    padded = triton.next_power_of_2(width)
    _walk_channels[(triton.cdiv(channels, tile.block), walk.count)](
        out, *inputs, layer.a, layer.d, layer.dt_bias, *row_words(walk, table), *(each.stride(0) for each in inputs),
        CHANNELS=channels, WIDTH=width, WIDTH_PAD=padded, BLOCK=tile.block, AHEAD=tile.ahead,
        EVEN=padded == width and channels % tile.block == 0, SINGLE=walk.single, PDL=early,
        num_warps=tile.warps, enable_fp_fusion=False, launch_pdl=early,
    )  # fmt: skip

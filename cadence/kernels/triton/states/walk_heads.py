"""Mamba-2, token by token: a program has a block of a head's entries, for all that they are written and read by."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.state_ops import HeadScan, StateTable
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import part_of, read, softplus, write
from cadence.kernels.triton.states.tiles import WalkTile
from cadence.kernels.triton.states.walk import Walk, row_words


@triton.jit
def take_in(state, x, dt, b, a, dt_bias, low, high):
    """state [WIDTH, BLOCK], x [BLOCK], b [WIDTH], float32 all"""
    dt = tl.minimum(tl.maximum(softplus(dt + dt_bias), low), high)
    return tl.fma(state, tl.exp(dt * a), b[:, None] * (dt * x)[None, :])


@triton.jit
def _result(state, x, c, d):
    return tl.fma(d, x, tl.sum(state * c[:, None], 0))


@triton.jit
def _token(token, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, entry_in, width_in, EVEN: tl.constexpr):
    token = tl.cast(token, tl.int64)
    x = read(x_at + token * x_token, entry_in, EVEN)
    dt = tl.load(dt_at + token * dt_token).to(tl.float32)
    return x, dt, read(b_at + token * b_token, width_in, EVEN), read(c_at + token * c_token, width_in, EVEN)


@triton.jit
def _walk(
    state, begin, end, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, a, d, dt_bias, low, high,
    entry_in, width_in, OUT_TOKEN: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Tokens [begin, end); each is loaded while the one before it is taken in."""
    x, dt, b, c = _token(
        tl.maximum(tl.minimum(begin, end - 1), 0), x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
        entry_in, width_in, EVEN,
    )  # fmt: skip
    for token in range(begin, end):
        next_x, next_dt, next_b, next_c = _token(
            tl.minimum(token + 1, end - 1), x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
            entry_in, width_in, EVEN,
        )  # fmt: skip
        state = take_in(state, x, dt, b, a, dt_bias, low, high)
        write(out_at + tl.cast(token, tl.int64) * OUT_TOKEN, _result(state, x, c, d), entry_in, EVEN)
        x, dt, b, c = next_x, next_dt, next_b, next_c
    return state


@quick
@triton.jit(do_not_specialize=["first_run", "most_tokens"])
def _walk_heads(
    out_ptr, x_ptr, dt_ptr, b_ptr, c_ptr, a_ptr, d_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, x_token, x_head, dt_token, b_token, b_group, c_token, c_group, low, high,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per run and block of a head. SIZE: entries of a head; WIDTH: of b and c. SINGLE: runs of one token,
    the first of them at token 0."""
    BLOCKS: tl.constexpr = (SIZE + BLOCK - 1) // BLOCK
    run = first_run + tl.program_id(1)
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    group = head * GROUPS // HEADS
    entry, width = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH_PAD)
    entry_in, width_in = entry < SIZE, width < WIDTH
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
    state_at = state_ptr + row * state_row + head * (WIDTH * SIZE) + width[:, None] * SIZE + entry[None, :]
    inside = width_in[:, None] & entry_in[None, :]
    state = read(state_at, inside, EVEN)
    a, d, dt_bias = tl.load(a_ptr + head), tl.load(d_ptr + head), tl.load(bias_ptr + head)
    kept_at = kept_ptr + row * kept_row
    for line in range(replayed):
        line_at = kept_at + line * kept_line
        x = read(line_at + head * SIZE + entry, entry_in, EVEN)
        dt = tl.load(line_at + HEADS * SIZE + head).to(tl.float32)
        b = read(line_at + HEADS * SIZE + HEADS + group * WIDTH + width, width_in, EVEN)
        state = take_in(state, x, dt, b, a, dt_bias, low, high)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    out_at = out_ptr + head * SIZE + entry
    x_at, dt_at = x_ptr + head * x_head + entry, dt_ptr + head
    b_at, c_at = b_ptr + group * b_group + width, c_ptr + group * c_group + width
    if SINGLE:
        x, dt, b, c = _token(
            run, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token, entry_in, width_in, EVEN
        )  # fmt: skip
        state = take_in(state, x, dt, b, a, dt_bias, low, high)
        write(out_at + tl.cast(run, tl.int64) * (HEADS * SIZE), _result(state, x, c, d), entry_in, EVEN)
        if stored:
            write(state_at, state, inside, EVEN)
    else:
        state = _walk(
            state, first, begin + certain, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
            a, d, dt_bias, low, high, entry_in, width_in, HEADS * SIZE, EVEN,
        )  # fmt: skip
        if stored:
            write(state_at, state, inside, EVEN)
        _walk(
            state, begin + certain, end, out_at, x_at, dt_at, b_at, c_at, x_token, dt_token, b_token, c_token,
            a, d, dt_bias, low, high, entry_in, width_in, HEADS * SIZE, EVEN,
        )  # fmt: skip


def walk_heads(
    out: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    bc: tuple[torch.Tensor, torch.Tensor],
    layer: HeadScan,
    table: StateTable,
    walk: Walk,
    tile: WalkTile,
    pdl: bool,
) -> None:
    """x [T, H, P], dt [T, H], b and c [T, G, N] -> out [T, H, P], of the walk's runs."""
    b, c = bc
    _, heads, size = x.shape
    groups, width = b.shape[1:]
    early = walk.begins_early(pdl)
    padded = triton.next_power_of_2(width)
    _walk_heads[(heads * triton.cdiv(size, tile.block), walk.count)](
        out, x, dt, b, c, layer.a, layer.d, layer.dt_bias, *row_words(walk, table),
        x.stride(0), x.stride(1), dt.stride(0), b.stride(0), b.stride(1), c.stride(0), c.stride(1),
        *map(float, layer.dt_limit),
        HEADS=heads, GROUPS=groups, WIDTH=width, WIDTH_PAD=padded, SIZE=size, BLOCK=tile.block,
        EVEN=padded == width and size % tile.block == 0, SINGLE=walk.single, PDL=early,
        num_warps=tile.warps, enable_fp_fusion=False, launch_pdl=early,
    )  # fmt: skip

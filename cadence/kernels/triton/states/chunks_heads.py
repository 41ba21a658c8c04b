"""Mamba-2 by chunks of tokens, on matrix units.

A program walks through a run from chunk to chunk with a block of a head's state. Within a chunk, with A_i the sum of
log decays up to token i, and E_j = A_j - log(dt_j):
    y_i = exp(A_i) c_i S + sum over j <= i of exp(A_i - E_j) (c_i b_j) x_j + d x_i
    S' = exp(A_last) S + sum over j of exp(A_last - E_j) b_j x_j
Where runs are too few to fill the device, long ones are cut into spans of several chunks. A first kernel sums up what
each span adds to a state; programs of the second begin with the state that the spans before theirs make up.

Tokens that are certain are taken alone: drafts are walked through, from the state that is stored.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.state_ops import HeadScan, StateTable
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import certain_tokens, factors_of, find_run, lines, softplus
from cadence.kernels.triton.states.tiles import HeadChunks
from cadence.kernels.triton.states.walk import Walk, row_words
from cadence.kernels.triton.states.walk_heads import take_in


@triton.jit
def _decays(dt, there, a, dt_bias, low, high):
    """-> (sums of log decays up to each token, these less the logs of dt, that of all tokens): to base 2, and as if
    tokens that are not there left a state as it is"""
    dt = softplus(dt.to(tl.float32) + dt_bias)
    dt = tl.where(there, tl.minimum(tl.maximum(dt, low), high), 0.0)
    decays = dt * (a * 1.4426950408889634)
    sums = tl.cumsum(decays, 0)
    return sums, sums - tl.log2(dt), tl.sum(decays, 0)


@triton.jit
def _add_chunk(state, x, b, entering, log_decay, PRECISION: tl.constexpr):
    """The state after a chunk whose decay is 2 ** log_decay. entering: the second of `_decays`"""
    weighted = (x.to(tl.float32) * tl.exp2(log_decay - entering)[:, None]).to(b.dtype)
    return tl.dot(tl.trans(b), weighted, state * tl.exp2(log_decay), input_precision=PRECISION)


@triton.jit
def _first_state(
    state_at, kept_ptr, row, kept_row, kept_line, head, group, entry, width, replayed, a, dt_bias, low, high,
    HEADS: tl.constexpr, WIDTH: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """A row's state, with the kept inputs that turned out right."""
    entry_in, width_in = entry < SIZE, width < WIDTH
    state = tl.load(state_at, mask=width_in[:, None] & entry_in[None, :], other=0.0)
    for line in range(replayed):
        line_at = kept_ptr + row * kept_row + line * kept_line
        x = tl.load(line_at + head * SIZE + entry, mask=entry_in, other=0.0).to(tl.float32)
        dt = tl.load(line_at + HEADS * SIZE + head).to(tl.float32)
        b_at = line_at + HEADS * SIZE + HEADS + group * WIDTH + width
        b = tl.load(b_at, mask=width_in, other=0.0).to(tl.float32)
        state = take_in(state, x, dt, b, a, dt_bias, low, high)
    return state


@triton.jit
def _place(BLOCKS: tl.constexpr, BLOCK: tl.constexpr, WIDTH_PAD: tl.constexpr):
    """-> head of this program, its entries, and what they are written and read by"""
    block = tl.program_id(0) % BLOCKS
    return tl.program_id(0) // BLOCKS, block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, WIDTH_PAD)


@quick
@triton.jit(do_not_specialize=["first_run", "num_runs", "most_tokens", "span_tokens"])
def _sum_spans(
    sums_ptr, logs_ptr, x_ptr, dt_ptr, b_ptr, a_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, x_token, x_head, dt_token, b_token, b_group, low, high, num_runs, span_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums [slots, HEADS, WIDTH, SIZE]: in the first slot of a run the state it begins with, in the second that after
    its first span, in the others what the spans before theirs add; logs [slots, HEADS]: log decays of these spans."""
    slot = tl.program_id(1)
    run, span = find_run(start_ptr, slot, first_run, num_runs, first_run, span_tokens, 1)
    begin, count, _ = certain_tokens(start_ptr, certain_ptr, run, most_tokens)
    if (span + 1) * span_tokens >= count:  # a run's last span adds to no other
        return
    head, entry, width = _place((SIZE + BLOCK - 1) // BLOCK, BLOCK, WIDTH_PAD)
    group = head * GROUPS // HEADS
    a, dt_bias = tl.load(a_ptr + head), tl.load(bias_ptr + head)
    state = tl.zeros([WIDTH_PAD, BLOCK], tl.float32)
    place = head * (WIDTH * SIZE) + width[:, None] * SIZE + entry[None, :]
    inside = (width < WIDTH)[:, None] & (entry < SIZE)[None, :]
    sums_at = sums_ptr + slot.to(tl.int64) * (HEADS * WIDTH * SIZE)
    if span == 0:
        row = tl.load(rows_ptr + run).to(tl.int64)
        state = _first_state(
            state_ptr + row * state_row + place, kept_ptr, row, kept_row, kept_line, head, group, entry, width,
            tl.load(replayed_ptr + run), a, dt_bias, low, high, HEADS, WIDTH, SIZE,
        )  # fmt: skip
        tl.store(sums_at + place, state, mask=inside)
    all_decays = 0.0
    line = tl.arange(0, CHUNK)
    token = begin + span * span_tokens + line
    last = begin + (span + 1) * span_tokens - 1
    dt_at = dt_ptr + head
    x_at, b_at = x_ptr + head * x_head + entry[None, :], b_ptr + group * b_group + width[None, :]
    dt = tl.load(dt_at + token * dt_token)
    for _ in range(span_tokens // CHUNK):
        _, entering, log_decay = _decays(dt, line >= 0, a, dt_bias, low, high)  # all tokens are there
        dt = tl.load(dt_at + tl.minimum(token + CHUNK, last) * dt_token)
        x = lines(x_at + token[:, None] * x_token, (entry < SIZE)[None, :], EVEN)
        b = lines(b_at + token[:, None] * b_token, (width < WIDTH)[None, :], EVEN).to(KIND)
        state = _add_chunk(state, x, b, entering, log_decay, PRECISION)
        all_decays += log_decay
        token += CHUNK
    tl.store(sums_at + HEADS * WIDTH * SIZE + place, state, mask=inside)
    tl.store(logs_ptr + (slot + 1) * HEADS + head, all_decays)


@quick
@triton.jit(do_not_specialize=["first_run", "num_runs", "most_tokens", "span_tokens"])
def _scan_spans(
    out_ptr, sums_ptr, logs_ptr, x_ptr, dt_ptr, b_ptr, c_ptr, a_ptr, d_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, x_token, x_head, dt_token, b_token, b_group, c_token, c_group,
    low, high, num_runs, span_tokens,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, WIDTH: tl.constexpr, WIDTH_PAD: tl.constexpr, SIZE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, SPLIT: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """SPLIT: runs may have several spans, and `_sum_spans` has been."""
    slot = tl.program_id(1)
    run, span = find_run(start_ptr, slot, first_run, num_runs, first_run, span_tokens, 1)
    begin, count, stored = certain_tokens(start_ptr, certain_ptr, run, most_tokens)
    if span * span_tokens >= count:
        return
    head, entry, width = _place((SIZE + BLOCK - 1) // BLOCK, BLOCK, WIDTH_PAD)
    group = head * GROUPS // HEADS
    a, d, dt_bias = tl.load(a_ptr + head), tl.load(d_ptr + head), tl.load(bias_ptr + head)
    place = head * (WIDTH * SIZE) + width[:, None] * SIZE + entry[None, :]
    inside = (width < WIDTH)[:, None] & (entry < SIZE)[None, :]
    own = state_ptr + tl.load(rows_ptr + run).to(tl.int64) * state_row
    state = tl.zeros([WIDTH_PAD, BLOCK], tl.float32)
    if count <= span_tokens:
        state = _first_state(
            own + place, kept_ptr, tl.load(rows_ptr + run).to(tl.int64), kept_row, kept_line, head, group, entry, width,
            tl.load(replayed_ptr + run), a, dt_bias, low, high, HEADS, WIDTH, SIZE,
        )  # fmt: skip
    elif SPLIT:
        earlier = slot - span + tl.minimum(span, 1)
        state = tl.load(sums_ptr + earlier.to(tl.int64) * (HEADS * WIDTH * SIZE) + place, mask=inside, other=0.0)
        for other in range(earlier + 1, slot + 1):
            decay = tl.exp2(tl.load(logs_ptr + other * HEADS + head))
            added = sums_ptr + tl.cast(other, tl.int64) * (HEADS * WIDTH * SIZE) + place
            state = state * decay + tl.load(added, mask=inside, other=0.0)

    end = tl.minimum((span + 1) * span_tokens, count)
    line = tl.arange(0, CHUNK)
    dt_at, out_at = dt_ptr + head + begin * dt_token, out_ptr + begin * (HEADS * SIZE) + head * SIZE + entry[None, :]
    x_at = x_ptr + head * x_head + begin * x_token + entry[None, :]
    b_at = b_ptr + group * b_group + begin * b_token + width[None, :]
    c_at = c_ptr + group * c_group + begin * c_token + width[None, :]
    at = (span * span_tokens + line).to(tl.int64)
    dt = tl.load(dt_at + tl.minimum(at, end - 1) * dt_token)
    for _ in range((end - span * span_tokens + CHUNK - 1) // CHUNK):
        sums, entering, log_decay = _decays(dt, at < end, a, dt_bias, low, high)
        dt = tl.load(dt_at + tl.minimum(at + CHUNK, end - 1) * dt_token)
        token = tl.minimum(at, end - 1)[:, None]  # what is after the end counts for nothing
        x = lines(x_at + token * x_token, (entry < SIZE)[None, :], EVEN)
        b = lines(b_at + token * b_token, (width < WIDTH)[None, :], EVEN).to(KIND)
        c = lines(c_at + token * c_token, (width < WIDTH)[None, :], EVEN).to(KIND)
        pairs = tl.dot(c, tl.trans(b), input_precision=PRECISION)
        seen = tl.where(line[:, None] >= line[None, :], sums[:, None] - entering[None, :], float("-inf"))
        out = tl.dot(c, state.to(KIND), input_precision=PRECISION) * tl.exp2(sums)[:, None]
        out = tl.dot((pairs * tl.exp2(seen)).to(KIND), x.to(KIND), out, input_precision=PRECISION)
        out += d * x.to(tl.float32)
        there = (at < end)[:, None] & (entry < SIZE)[None, :]
        tl.store(out_at + at[:, None] * (HEADS * SIZE), out.to(out_ptr.dtype.element_ty), mask=there)
        state = _add_chunk(state, x, b, entering, log_decay, PRECISION)
        at += CHUNK
    if (end == count) & stored:
        tl.store(own + place, state, mask=inside)


def scan_chunks(
    out: torch.Tensor,
    x: torch.Tensor,
    dt: torch.Tensor,
    bc: tuple[torch.Tensor, torch.Tensor],
    layer: HeadScan,
    table: StateTable,
    walk: Walk,
    tile: HeadChunks,
) -> None:
    """x [T, H, P], dt [T, H], b and c [T, G, N] -> out [T, H, P], of what is certain of the walk's runs, but of those
    of up to `most_tokens`. They are the last of the batch."""
    b, c = bc
    tokens, heads, size = x.shape
    groups, width = b.shape[1:]
    columns = heads * triton.cdiv(size, tile.block)
    span = span_of(tokens - walk.first, walk.count, columns, tile)
    slots = (tokens - walk.first) // span + walk.count
    split = slots > walk.count
    sums = torch.empty((slots if split else 0, heads, width, size), dtype=torch.float32, device=x.device)
    logs = torch.empty((slots if split else 0, heads), dtype=torch.float32, device=x.device)
    limits, rows = [float(limit) for limit in layer.dt_limit], row_words(walk, table)
    constants = {
        "HEADS": heads, "GROUPS": groups, "WIDTH": width, "WIDTH_PAD": max(triton.next_power_of_2(width), 16),
        "SIZE": size, "BLOCK": tile.block, "CHUNK": tile.chunk,
    }  # fmt: skip
    factors = factors_of(x.dtype, min(constants["WIDTH_PAD"], tile.block, tile.chunk))
    kinds = {
        "EVEN": constants["WIDTH_PAD"] == width and size % tile.block == 0,
        **factors,
        "num_warps": tile.warps,
        "num_stages": tile.stages if factors["KIND"] is tl.bfloat16 else 1,
    }
    if split:
        _sum_spans[(columns, slots)](
            sums, logs, x, dt, b, layer.a, layer.dt_bias, *rows,
            x.stride(0), x.stride(1), dt.stride(0), b.stride(0), b.stride(1), *limits, walk.count, span,
            **constants, **kinds,
        )  # fmt: skip
    _scan_spans[(columns, slots)](
        out, sums, logs, x, dt, b, c, layer.a, layer.d, layer.dt_bias, *rows,
        x.stride(0), x.stride(1), dt.stride(0), b.stride(0), b.stride(1), c.stride(0), c.stride(1), *limits,
        walk.count, span, **constants, SPLIT=split, **kinds,
    )  # fmt: skip


def span_of(tokens: int, runs: int, columns: int, tile: HeadChunks) -> int:
    """Tokens of a span, in whole chunks: of all runs together as many as fill the device; or all of every run."""
    spans = tile.programs // columns
    if spans <= runs:
        return triton.cdiv(tokens + 1, tile.chunk) * tile.chunk
    return triton.cdiv(triton.cdiv(tokens, spans), tile.chunk) * tile.chunk

"""The gated delta rule by chunks of tokens, on matrix units.

Within a chunk that begins with a state S, with G_i the sum of log decays up to token i, what token i adds is k_i u_i,
    u_i = beta_i (v_i - exp(G_i) k_i S - sum over j < i of exp(G_i - G_j) (k_i k_j) u_j)
which is linear: with L the matrix of beta_i exp(G_i - G_j) (k_i k_j) below its diagonal and M the inverse of 1 + L,
    U = M (beta V) - M (beta exp(G) K) S
    o_i = exp(G_i) q_i S + sum over j <= i of exp(G_i - G_j) (q_i k_j) u_j
    S' = exp(G_last) S + sum over j of exp(G_last - G_j) k_j u_j
The first kernel makes M (beta V), M (beta exp(G) K) and the weights of u in o, of all chunks at once; programs of the
second walk through runs, each with a block of a head's values. What makes queries and keys of length 1 is multiplied in
afterwards: matrix units take them as they are.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.state_ops import DeltaRule, StateTable
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import certain_tokens, factors_of, find_run, lines, softplus
from cadence.kernels.triton.states.tiles import DeltaChunks
from cadence.kernels.triton.states.walk import Walk, row_words
from cadence.kernels.triton.states.walk_delta import take_in

_SQUARE = tl.constexpr(16)  # rows and columns of what is inverted one row after another


@triton.jit
def _inverse_of_squares(low):
    """Of 1 + low; low [N, _SQUARE, _SQUARE] strictly lower -> the same shape"""
    line = tl.arange(0, _SQUARE)
    found = -low
    for at in range(2, _SQUARE):
        own = (line == at)[None, :, None]
        row = tl.sum(tl.where(own, found, 0.0), 1)
        row += tl.sum(row[:, :, None] * found, 1)
        found = tl.where(own, row[:, None, :], found)
    return found + tl.where(line[:, None] == line[None, :], 1.0, 0.0)[None, :, :]


@triton.jit
def _inverse(low, CHUNK: tl.constexpr, PRECISION: tl.constexpr):
    """Of 1 + low; low [CHUNK, CHUNK] strictly lower. Squares on the diagonal first; the rest, times their inverse, is
    zero in its fourth power."""
    COUNT: tl.constexpr = CHUNK // _SQUARE
    tl.static_assert(COUNT == 1 or COUNT == 4)
    if COUNT == 1:
        return tl.reshape(_inverse_of_squares(tl.reshape(low, [1, CHUNK, CHUNK])), [CHUNK, CHUNK])
    number = tl.arange(0, COUNT)
    on_diagonal = number[:, None, None, None] == number[None, None, :, None]
    squares = tl.sum(tl.where(on_diagonal, tl.reshape(low, [COUNT, _SQUARE, COUNT, _SQUARE]), 0.0), 2)
    squares = _inverse_of_squares(squares)
    wide = tl.reshape(tl.where(on_diagonal, squares[:, :, None, :], 0.0), [CHUNK, CHUNK])
    line = tl.arange(0, CHUNK)
    rest = tl.where(line[:, None] // _SQUARE > line[None, :] // _SQUARE, low, 0.0)
    rest = tl.dot(wide, rest, input_precision=PRECISION)
    second = tl.dot(rest, rest, input_precision=PRECISION)
    powers = tl.where(line[:, None] == line[None, :], 1.0, 0.0) - rest + second
    powers -= tl.dot(rest, second, input_precision=PRECISION)
    return tl.dot(powers, wide, input_precision=PRECISION)


@quick
@triton.jit(do_not_specialize=["first_run", "num_runs", "most_tokens", "num_tokens"])
def _prepare(
    values_ptr, keys_ptr, weights_ptr, scales_ptr, q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, a_ptr, bias_ptr,
    start_ptr, certain_ptr, first_run, num_runs, most_tokens, num_tokens,
    q_token, q_head, k_token, k_head, v_token, v_head, decay_token, beta_token, scale,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, KEY_PAD: tl.constexpr, VALUE: tl.constexpr,
    VALUE_PAD: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """A program per chunk and head. Of token t, counted from the first run's: values [T, HEADS, VALUE] = M (beta V),
    keys [T, HEADS, KEY] = M (beta exp(G) K), weights [T, HEADS, CHUNK] of u in o; scales [3, HEADS, T] = what q S and
    u are times, and G."""
    head = tl.program_id(0)
    key_head = head * KEY_HEADS // HEADS
    run, chunk = find_run(start_ptr, tl.program_id(1), first_run, num_runs, first_run, CHUNK, 1)
    begin, count, _ = certain_tokens(start_ptr, certain_ptr, run, most_tokens)
    if chunk * CHUNK >= count:
        return
    line, key, value = tl.arange(0, CHUNK), tl.arange(0, KEY_PAD), tl.arange(0, VALUE_PAD)
    there = chunk * CHUNK + line < count
    token = begin + tl.minimum(chunk * CHUNK + line, count - 1)  # what is after the end counts for nothing
    key_in, value_in = (key < KEY)[None, :], (value < VALUE)[None, :]
    q = lines(q_ptr + key_head * q_head + token[:, None] * q_token + key[None, :], key_in, EVEN)
    k = lines(k_ptr + key_head * k_head + token[:, None] * k_token + key[None, :], key_in, EVEN)
    v = lines(v_ptr + head * v_head + token[:, None] * v_token + value[None, :], value_in, EVEN).to(KIND)
    decay = tl.load(decay_ptr + head + token * decay_token).to(tl.float32)
    beta = tl.sigmoid(tl.load(beta_ptr + head + token * beta_token).to(tl.float32))
    beta = tl.where(there, beta, 0.0)
    decay = tl.where(there, tl.load(a_ptr + head) * softplus(decay + tl.load(bias_ptr + head)), 0.0)
    sums, last = tl.cumsum(decay, 0), tl.sum(decay, 0)
    q_size = tl.sum(q.to(tl.float32) * q.to(tl.float32), 1)
    k_size = tl.sum(k.to(tl.float32) * k.to(tl.float32), 1)
    q_factor = scale / tl.sqrt(q_size + 1e-6)
    k_factor = 1.0 / tl.sqrt(k_size + 1e-6)
    q, k = q.to(KIND), k.to(KIND)

    seen = line[:, None] >= line[None, :]
    left = tl.exp(tl.where(seen, sums[:, None] - sums[None, :], float("-inf"))) * k_factor[None, :]
    weights = tl.dot(q, tl.trans(k), input_precision=PRECISION) * left * q_factor[:, None]
    low = tl.dot(k, tl.trans(k), input_precision=PRECISION) * left * (beta * k_factor)[:, None]
    low = tl.where(line[:, None] > line[None, :], low, 0.0)
    inverse = _inverse(low, CHUNK, PRECISION)
    values = tl.dot((inverse * beta[None, :]).to(KIND), v, input_precision=PRECISION)
    by_keys = inverse * (beta * k_factor * tl.exp(sums))[None, :]
    keys = tl.dot(by_keys.to(KIND), k, input_precision=PRECISION)

    at = begin - first_run + chunk * CHUNK + line  # the runs before have a token each
    of_head = at * HEADS + head
    there_2d = there[:, None]
    tl.store(weights_ptr + of_head[:, None] * CHUNK + line[None, :], weights.to(KIND), mask=there_2d)
    tl.store(values_ptr + of_head[:, None] * VALUE + value[None, :], values.to(KIND), mask=there_2d & value_in)
    tl.store(keys_ptr + of_head[:, None] * KEY + key[None, :], keys.to(KIND), mask=there_2d & key_in)
    scale_at = scales_ptr + head * num_tokens.to(tl.int64) + at
    tl.store(scale_at, q_factor * tl.exp(sums), mask=there)
    tl.store(scale_at + HEADS * num_tokens, k_factor * tl.exp(last - sums), mask=there)
    tl.store(scale_at + 2 * HEADS * num_tokens, sums, mask=there)


@triton.jit
def _first_state(
    state_at, inside, kept_at, kept_line, head, key_head, key, value, replayed, a, dt_bias,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, VALUE: tl.constexpr,
):  # fmt: skip
    """A row's state, with the kept inputs that turned out right."""
    state = tl.load(state_at, mask=inside, other=0.0)
    for line in range(replayed):
        line_at = kept_at + line * kept_line
        v = tl.load(line_at + head * VALUE + value, mask=value < VALUE, other=0.0).to(tl.float32)
        k = tl.load(line_at + HEADS * VALUE + key_head * KEY + key, mask=key < KEY, other=0.0).to(tl.float32)
        decay = tl.load(line_at + HEADS * VALUE + KEY_HEADS * KEY + head).to(tl.float32)
        beta = tl.load(line_at + HEADS * VALUE + KEY_HEADS * KEY + HEADS + head).to(tl.float32)
        state = take_in(state, k, v, decay, beta, a, dt_bias)
    return state


@quick
@triton.jit(do_not_specialize=["first_run", "most_tokens", "num_tokens"])
def _walk_chunks(
    out_ptr, values_ptr, keys_ptr, weights_ptr, scales_ptr, q_ptr, k_ptr, a_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, q_token, q_head, k_token, k_head, num_tokens,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, KEY_PAD: tl.constexpr, VALUE: tl.constexpr,
    BLOCK: tl.constexpr, CHUNK: tl.constexpr, EVEN: tl.constexpr, KIND: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    BLOCKS: tl.constexpr = (VALUE + BLOCK - 1) // BLOCK
    run = first_run + tl.program_id(1)
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    key_head = head * KEY_HEADS // HEADS
    begin, count, stored = certain_tokens(start_ptr, certain_ptr, run, most_tokens)
    if count == 0:
        return
    key, value, line = tl.arange(0, KEY_PAD), block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, CHUNK)
    key_in, value_in = (key < KEY)[None, :], (value < VALUE)[None, :]
    inside = (key < KEY)[:, None] & value_in
    row = tl.load(rows_ptr + run).to(tl.int64)
    state_at = state_ptr + row * state_row + head * (KEY * VALUE) + key[:, None] * VALUE + value[None, :]
    state = _first_state(
        state_at, inside, kept_ptr + row * kept_row, kept_line, head, key_head, key, value, tl.load(replayed_ptr + run),
        tl.load(a_ptr + head), tl.load(bias_ptr + head), HEADS, KEY_HEADS, KEY, VALUE,
    )  # fmt: skip
    q_at = q_ptr + key_head * q_head + begin * q_token + key[None, :]
    k_at = k_ptr + key_head * k_head + begin * k_token + key[None, :]
    first = begin - first_run  # of what was prepared
    out_at = out_ptr + (begin * HEADS + head) * VALUE + value[None, :]
    values_at = values_ptr + (first * HEADS + head) * VALUE + value[None, :]
    keys_at = keys_ptr + (first * HEADS + head) * KEY + key[None, :]
    weights_at = weights_ptr + (first * HEADS + head) * CHUNK + line[None, :]
    scale_at = scales_ptr + head * num_tokens.to(tl.int64) + first
    for chunk in range((count + CHUNK - 1) // CHUNK):
        at = chunk * CHUNK + line
        there = at < count
        end = tl.minimum((chunk + 1) * CHUNK, count) - 1
        at = tl.minimum(at, end).to(tl.int64)
        entering = tl.load(scale_at + at)
        leaving = tl.where(there, tl.load(scale_at + HEADS * num_tokens + at), 0.0)
        decay = tl.exp(tl.load(scale_at + 2 * HEADS * num_tokens + end))
        q = lines(q_at + at[:, None] * q_token, key_in, EVEN).to(KIND)
        k = lines(k_at + at[:, None] * k_token, key_in, EVEN).to(KIND)
        keys = lines(keys_at + at[:, None] * (HEADS * KEY), key_in, EVEN)
        values = lines(values_at + at[:, None] * (HEADS * VALUE), value_in, EVEN)
        weights = tl.load(weights_at + at[:, None] * (HEADS * CHUNK))
        rounded = state.to(KIND)
        added = values.to(tl.float32) - tl.dot(keys, rounded, input_precision=PRECISION)
        out = tl.dot(q, rounded, input_precision=PRECISION) * entering[:, None]
        out = tl.dot(weights, added.to(KIND), out, input_precision=PRECISION)
        mask = there[:, None] & value_in
        tl.store(out_at + at[:, None] * (HEADS * VALUE), out.to(out_ptr.dtype.element_ty), mask=mask)
        added = (added * leaving[:, None]).to(KIND)
        state = tl.dot(tl.trans(k), added, state * decay, input_precision=PRECISION)
    if stored:
        tl.store(state_at, state, mask=inside)


def delta_chunks(
    out: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gates: tuple[torch.Tensor, torch.Tensor],
    layer: DeltaRule,
    table: StateTable,
    walk: Walk,
    tile: DeltaChunks,
) -> None:
    """q and k [T, Hk, Dk], v [T, Hv, Dv], gates = decay and beta [T, Hv] -> out [T, Hv, Dv], of what is certain of the
    walk's runs, but of those of up to `most_tokens`. They are the last of the batch."""
    (q, k, v), (decay, beta), runs = qkv, gates, walk.runs
    _, key_heads, key = k.shape
    tokens, heads, value = v.shape
    tokens -= walk.first
    key_pad, value_pad = (max(triton.next_power_of_2(each), 16) for each in (key, value))
    factors = factors_of(v.dtype, min(key_pad, value_pad, tile.block, tile.chunk))
    room = {"dtype": torch.bfloat16 if factors["KIND"] is tl.bfloat16 else torch.float32, "device": v.device}
    values, keys = torch.empty((tokens, heads, value), **room), torch.empty((tokens, heads, key), **room)
    weights = torch.empty((tokens, heads, tile.chunk), **room)
    scales = torch.empty((3, heads, tokens), dtype=torch.float32, device=v.device)
    constants = {"HEADS": heads, "KEY_HEADS": key_heads, "KEY": key, "KEY_PAD": key_pad, "VALUE": value}
    _prepare[(heads, tokens // tile.chunk + walk.count)](
        values, keys, weights, scales, q, k, v, decay, beta, layer.a, layer.dt_bias,
        runs.query_start, runs.certain, walk.first, walk.count, walk.most_tokens, tokens,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), decay.stride(0), beta.stride(0),
        key**-0.5, **constants, VALUE_PAD=value_pad, CHUNK=tile.chunk, EVEN=(key_pad, value_pad) == (key, value),
        **factors, num_warps=tile.warps, num_stages=1,
    )  # fmt: skip
    _walk_chunks[(heads * triton.cdiv(value, tile.block), walk.count)](
        out, values, keys, weights, scales, q, k, layer.a, layer.dt_bias, *row_words(walk, table),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), tokens,
        **constants, BLOCK=tile.block, CHUNK=tile.chunk, EVEN=key_pad == key and value % tile.block == 0, **factors,
        num_warps=tile.walk_warps, num_stages=tile.stages if factors["KIND"] is tl.bfloat16 else 1,
    )  # fmt: skip

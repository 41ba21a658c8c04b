"""The gated delta rule, token by token: a program has a block of a head's values, for all entries of its key."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.state_ops import DeltaRule, StateTable
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.states.parts import part_of, read, softplus, write
from cadence.kernels.triton.states.tiles import WalkTile
from cadence.kernels.triton.states.walk import Walk, row_words


@triton.jit
def _along(state, key):
    """What a state [KEY, BLOCK] has of a key [KEY], and the inverse length of that, of every column: the two are summed
    up as one, for the layout of a state is the same in every kernel, and so is then the order."""
    wide = tl.broadcast_to(key[:, None], state.shape)
    found, square = tl.split(tl.sum(tl.join(state * wide, wide * wide), 0))
    return found, 1.0 / tl.sqrt(square + 1e-6)


@triton.jit
def take_in(state, k, v, decay, beta, a, dt_bias):
    """state [KEY, BLOCK], k [KEY] of any length, v [BLOCK], float32 all"""
    state *= tl.exp(a * softplus(decay + dt_bias))
    found, factor = _along(state, k)
    new = tl.sigmoid(beta) * (v - found * factor)
    return tl.fma(k[:, None], (new * factor)[None, :], state)


@triton.jit
def _result(state, q, scale):
    found, factor = _along(state, q)
    return found * factor * scale


@triton.jit
def _token(
    token, q_at, k_at, v_at, decay_at, beta_at, q_token, k_token, v_token, decay_token, beta_token,
    key_in, value_in, EVEN: tl.constexpr,
):  # fmt: skip
    token = tl.cast(token, tl.int64)
    q, k = read(q_at + token * q_token, key_in, EVEN), read(k_at + token * k_token, key_in, EVEN)
    decay, beta = tl.load(decay_at + token * decay_token), tl.load(beta_at + token * beta_token)
    return q, k, read(v_at + token * v_token, value_in, EVEN), decay.to(tl.float32), beta.to(tl.float32)


@triton.jit
def _walk(
    state, begin, end, out_at, q_at, k_at, v_at, decay_at, beta_at, q_token, k_token, v_token, decay_token, beta_token,
    a, dt_bias, scale, key_in, value_in, OUT_TOKEN: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    """Tokens [begin, end); each is loaded while the one before it is taken in."""
    q, k, v, decay, beta = _token(
        tl.maximum(tl.minimum(begin, end - 1), 0), q_at, k_at, v_at, decay_at, beta_at,
        q_token, k_token, v_token, decay_token, beta_token, key_in, value_in, EVEN,
    )  # fmt: skip
    for token in range(begin, end):
        next_q, next_k, next_v, next_decay, next_beta = _token(
            tl.minimum(token + 1, end - 1), q_at, k_at, v_at, decay_at, beta_at,
            q_token, k_token, v_token, decay_token, beta_token, key_in, value_in, EVEN,
        )  # fmt: skip
        state = take_in(state, k, v, decay, beta, a, dt_bias)
        write(out_at + tl.cast(token, tl.int64) * OUT_TOKEN, _result(state, q, scale), value_in, EVEN)
        q, k, v, decay, beta = next_q, next_k, next_v, next_decay, next_beta
    return state


@quick
@triton.jit(do_not_specialize=["first_run", "most_tokens"])
def _walk_delta(
    out_ptr, q_ptr, k_ptr, v_ptr, decay_ptr, beta_ptr, a_ptr, bias_ptr,
    state_ptr, kept_ptr, rows_ptr, start_ptr, replayed_ptr, certain_ptr, first_run, most_tokens,
    state_row, kept_row, kept_line, q_token, q_head, k_token, k_head, v_token, v_head, decay_token, beta_token, scale,
    HEADS: tl.constexpr, KEY_HEADS: tl.constexpr, KEY: tl.constexpr, KEY_PAD: tl.constexpr, VALUE: tl.constexpr,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, SINGLE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """A program per run and block of a head's values. SINGLE: runs of one token, the first of them at token 0."""
    BLOCKS: tl.constexpr = (VALUE + BLOCK - 1) // BLOCK
    run = first_run + tl.program_id(1)
    head, block = tl.program_id(0) // BLOCKS, tl.program_id(0) % BLOCKS
    key_head = head * KEY_HEADS // HEADS
    value, key = block * BLOCK + tl.arange(0, BLOCK), tl.arange(0, KEY_PAD)
    value_in, key_in = value < VALUE, key < KEY
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
    state_at = state_ptr + row * state_row + head * (KEY * VALUE) + key[:, None] * VALUE + value[None, :]
    inside = key_in[:, None] & value_in[None, :]
    state = read(state_at, inside, EVEN)
    a, dt_bias = tl.load(a_ptr + head), tl.load(bias_ptr + head)
    kept_at = kept_ptr + row * kept_row
    for line in range(replayed):
        line_at = kept_at + line * kept_line
        v = read(line_at + head * VALUE + value, value_in, EVEN)
        k = read(line_at + HEADS * VALUE + key_head * KEY + key, key_in, EVEN)
        decay = tl.load(line_at + HEADS * VALUE + KEY_HEADS * KEY + head).to(tl.float32)
        beta = tl.load(line_at + HEADS * VALUE + KEY_HEADS * KEY + HEADS + head).to(tl.float32)
        state = take_in(state, k, v, decay, beta, a, dt_bias)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    out_at = out_ptr + head * VALUE + value
    q_at, k_at = q_ptr + key_head * q_head + key, k_ptr + key_head * k_head + key
    v_at, decay_at, beta_at = v_ptr + head * v_head + value, decay_ptr + head, beta_ptr + head
    if SINGLE:
        q, k, v, decay, beta = _token(
            run, q_at, k_at, v_at, decay_at, beta_at, q_token, k_token, v_token, decay_token, beta_token,
            key_in, value_in, EVEN,
        )  # fmt: skip
        state = take_in(state, k, v, decay, beta, a, dt_bias)
        write(out_at + tl.cast(run, tl.int64) * (HEADS * VALUE), _result(state, q, scale), value_in, EVEN)
        if stored:
            write(state_at, state, inside, EVEN)
    else:
        state = _walk(
            state, first, begin + certain, out_at, q_at, k_at, v_at, decay_at, beta_at,
            q_token, k_token, v_token, decay_token, beta_token, a, dt_bias, scale, key_in, value_in,
            HEADS * VALUE, EVEN,
        )  # fmt: skip
        if stored:
            write(state_at, state, inside, EVEN)
        _walk(
            state, begin + certain, end, out_at, q_at, k_at, v_at, decay_at, beta_at,
            q_token, k_token, v_token, decay_token, beta_token, a, dt_bias, scale, key_in, value_in,
            HEADS * VALUE, EVEN,
        )  # fmt: skip


def walk_delta(
    out: torch.Tensor,
    qkv: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    gates: tuple[torch.Tensor, torch.Tensor],
    layer: DeltaRule,
    table: StateTable,
    walk: Walk,
    tile: WalkTile,
    pdl: bool,
) -> None:
    """q and k [T, Hk, Dk], v [T, Hv, Dv], gates = decay and beta [T, Hv] -> out [T, Hv, Dv], of the walk's runs."""
    (q, k, v), (decay, beta) = qkv, gates
    _, key_heads, key = k.shape
    _, heads, value = v.shape
    early = walk.begins_early(pdl)
    padded = triton.next_power_of_2(key)
    _walk_delta[(heads * triton.cdiv(value, tile.block), walk.count)](
        out, q, k, v, decay, beta, layer.a, layer.dt_bias, *row_words(walk, table),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), decay.stride(0), beta.stride(0),
        key**-0.5,
        HEADS=heads, KEY_HEADS=key_heads, KEY=key, KEY_PAD=padded, VALUE=value, BLOCK=tile.block,
        EVEN=padded == key and value % tile.block == 0, SINGLE=walk.single, PDL=early,
        num_warps=tile.warps, enable_fp_fusion=False, launch_pdl=early,
    )  # fmt: skip

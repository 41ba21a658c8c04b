"""What happens to queries, keys and values between their projection and attention, in one kernel."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.ops import Pair, Rotation, Triple
from cadence.kernels.triton.launch import quick

_FEW_TOKENS = 256


@triton.jit
def _turned(at, inside, norm_ptr, eps, angle, rest_inside,
            DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr,
            NORM: tl.constexpr):  # fmt: skip
    """The heads at `at` [HEADS, 1], normed and turned: [0, HALF), [HALF, 2 * HALF) and [2 * HALF, DIM) of each."""
    column = tl.arange(0, HALF_PAD)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
    kind = at.dtype.element_ty
    first = tl.load(at + column, inside, other=0.0).to(tl.float32)
    second = tl.load(at + HALF + column, inside, other=0.0).to(tl.float32)
    rest = tl.load(at + rest_column, rest_inside, other=0.0).to(tl.float32)
    if NORM:
        squares = tl.sum(first * first, 1) + tl.sum(second * second, 1) + tl.sum(rest * rest, 1)
        scale = (1.0 / tl.sqrt(squares / DIM + eps))[:, None]
        weight = norm_ptr + column
        turns = column < HALF
        first *= scale * tl.load(weight, turns, other=0.0).to(tl.float32)
        second *= scale * tl.load(weight + HALF, turns, other=0.0).to(tl.float32)
        rest *= scale * tl.load(norm_ptr + rest_column, rest_column < DIM, other=0.0).to(tl.float32)
        # Rotation takes the normed heads as they would be stored.
        first = first.to(kind).to(tl.float32)
        second = second.to(kind).to(tl.float32)
    cos = tl.load(angle + column, column < HALF, other=0.0)
    sin = tl.load(angle + HALF + column, column < HALF, other=0.0)
    return (first * cos - second * sin).to(kind), (second * cos + first * sin).to(kind), rest.to(kind)


@quick
@triton.jit
def rope_write_kv(
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, positions_ptr, slots_ptr, cos_sin_ptr, q_norm_ptr, k_norm_ptr, eps,
    q_token, q_head, k_token, k_head, v_token, v_head, k_block, v_block,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (t, i) takes HEADS heads of token t: first those of q, turned in place, then keys with their values.

    q [T, Q_HEADS, DIM], k and v [T, K_HEADS, DIM]; caches [num_blocks, K_HEADS, BLOCK_SIZE, DIM].
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF_PAD)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
    # Where tokens stand is known since the step began, and the embedding waited for all of that.
    angle = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF)
    slot = tl.load(slots_ptr + token)
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    Q_PARTS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS if NORM or HALF > 0 else 0
    if part < Q_PARTS:
        head = part * HEADS + line
        inside = (head < Q_HEADS) & (column < HALF)
        rest_inside = (head < Q_HEADS) & (rest_column < DIM)
        at = q_ptr + token * q_token + head * q_head
        first, second, rest = _turned(
            at, inside, q_norm_ptr, eps, angle, rest_inside, DIM, HALF, HALF_PAD, REST_PAD, NORM
        )
        tl.store(at + column, first, inside)
        tl.store(at + HALF + column, second, inside)
        if NORM:
            tl.store(at + rest_column, rest, rest_inside)
    else:
        head = (part - Q_PARTS) * HEADS + line
        inside = (head < K_HEADS) & (column < HALF)
        rest_inside = (head < K_HEADS) & (rest_column < DIM)
        at = k_ptr + token * k_token + head * k_head
        first, second, rest = _turned(
            at, inside, k_norm_ptr, eps, angle, rest_inside, DIM, HALF, HALF_PAD, REST_PAD, NORM
        )
        place = (head * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
        kind = k_cache_ptr.dtype.element_ty
        k_at = k_cache_ptr + slot // BLOCK_SIZE * k_block + place
        tl.store(k_at + column, first.to(kind), inside)
        tl.store(k_at + HALF + column, second.to(kind), inside)
        tl.store(k_at + rest_column, rest.to(kind), rest_inside)
        at = v_ptr + token * v_token + head * v_head
        v_at = v_cache_ptr + slot // BLOCK_SIZE * v_block + place
        tl.store(v_at + column, tl.load(at + column, inside).to(kind), inside)
        tl.store(v_at + HALF + column, tl.load(at + HALF + column, inside).to(kind), inside)
        tl.store(v_at + rest_column, tl.load(at + rest_column, rest_inside).to(kind), rest_inside)


def rotate_and_store(
    qkv: Triple,
    positions: torch.Tensor,
    rotation: Rotation,
    kv: Pair,
    slots: torch.Tensor,
    fixed: bool,
    pdl: bool,
) -> torch.Tensor:
    """`Ops.rope_write_kv`, in place in q. `fixed` sums each head's norm in one order whatever the number of tokens."""
    (q, k, v), (k_cache, v_cache) = qkv, kv
    tokens, q_heads, dim = q.shape
    k_heads, half = k.shape[1], rotation.cos_sin.shape[1] // 2
    norms = rotation.norms or (q, q)
    changed = q_heads if half or rotation.norms else 0
    # Few tokens: many programs of a single warp, in which no thread waits for another's part.
    heads, warps = (2, 1) if fixed or tokens <= _FEW_TOKENS else (8, 2)
    parts = triton.cdiv(changed, heads) + triton.cdiv(k_heads, heads)
    rope_write_kv[(tokens, parts)](
        q, k, v, k_cache, v_cache, positions, slots, rotation.cos_sin if half else q, *norms, rotation.eps,
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        k_cache.stride(0), v_cache.stride(0),
        Q_HEADS=q_heads, K_HEADS=k_heads, HEADS=heads, BLOCK_SIZE=k_cache.shape[2],
        DIM=dim, HALF=half, HALF_PAD=triton.next_power_of_2(max(half, 1)),
        REST_PAD=triton.next_power_of_2(max(dim - 2 * half, 1)), NORM=bool(rotation.norms), PDL=pdl,
        num_warps=warps, launch_pdl=pdl,
    )  # fmt: skip
    return q

"""What happens to queries, keys and values between their projection and attention, in one kernel.

Where each sequence has one token, the kernel also asks for the first keys and values that attention will read: it is
there while the projection is still being made, and the memory has little to do then.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.attention_batch import AttentionBatch
from cadence.kernels.interface.ops import Pair, Rotation, Triple
from cadence.kernels.triton.attention.byte_rows import entries_of, most_entry, scales_of, sizes
from cadence.kernels.triton.common.fetch import fetch
from cadence.kernels.triton.common.launch import quick

_FEW_TOKENS = 256
_WARP = 32  # threads
_AHEAD = 132  # pairs of sequence and kv head whose keys are asked for: those that attention begins with


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


@triton.jit
def _fetch_keys(
    k_cache_ptr, v_cache_ptr, table, head, position, k_block, v_block,
    HEADS: tl.constexpr, K_HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, DIM: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Asks for the first blocks of a sequence, of HEADS heads from `head` on: a run of keys or of values per thread."""
    BLOCKS: tl.constexpr = THREADS // (2 * HEADS)
    thread = tl.arange(0, THREADS)
    block = tl.minimum(thread % BLOCKS, position // BLOCK_SIZE)
    page = tl.load(table + block).to(tl.int64)
    CACHE: tl.constexpr = k_cache_ptr.dtype.element_ty
    RUN: tl.constexpr = BLOCK_SIZE * (DIM + 4) if CACHE.primitive_bitwidth == 8 else BLOCK_SIZE * DIM  # entries
    run = tl.minimum(head + thread // BLOCKS % HEADS, K_HEADS - 1) * RUN
    key_at, value_at = k_cache_ptr + page * k_block + run, v_cache_ptr + page * v_block + run
    at = tl.where(thread < THREADS // 2, key_at.to(tl.int64), value_at.to(tl.int64))
    fetch(at, RUN * CACHE.primitive_bitwidth // 8)


@triton.jit
def _store_bytes(at, step, scale_at, first, second, rest, fixed, inside, rest_inside, is_head,
                 HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr):  # fmt: skip
    """Heads in the parts that `_turned` gives -> entries `step` apart from `at` [HEADS, 1] on, and their scales."""
    CACHE: tl.constexpr = at.dtype.element_ty
    column = tl.arange(0, HALF_PAD)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
    top = tl.maximum(tl.max(sizes(tl.where(inside, first, 0.0)), 1), tl.max(sizes(tl.where(inside, second, 0.0)), 1))
    top = tl.maximum(top, tl.max(sizes(tl.where(rest_inside, rest, 0.0)), 1))
    most = most_entry(CACHE)
    scale, inverse = scales_of(top[:, None], fixed, most, CACHE)
    tl.store(at + column * step, entries_of(first, inverse, most, CACHE), inside)
    tl.store(at + (HALF + column) * step, entries_of(second, inverse, most, CACHE), inside)
    tl.store(at + rest_column * step, entries_of(rest, inverse, most, CACHE), rest_inside)
    tl.store(scale_at.to(tl.pointer_type(tl.float32)), scale, is_head)


@quick
@triton.jit
def rope_write_kv(
    q_ptr, k_ptr, v_ptr, k_cache_ptr, v_cache_ptr, positions_ptr, slots_ptr, cos_sin_ptr, q_norm_ptr, k_norm_ptr, eps,
    rows_ptr, table_ptr, table_stride, q_token, q_head, k_token, k_head, v_token, v_head, k_block, v_block,
    k_fixed, v_fixed,
    Q_HEADS: tl.constexpr, K_HEADS: tl.constexpr, HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    DIM: tl.constexpr, HALF: tl.constexpr, HALF_PAD: tl.constexpr, REST_PAD: tl.constexpr, NORM: tl.constexpr,
    PDL: tl.constexpr, AHEAD: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Program (t, i) takes HEADS heads of token t: first those of q, turned in place, then keys with their values.

    q [T, Q_HEADS, DIM], k and v [T, K_HEADS, DIM]; caches [num_blocks, K_HEADS, BLOCK_SIZE, DIM], or of eight bits.
    """
    token = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    line = tl.arange(0, HEADS)[:, None]
    column = tl.arange(0, HALF_PAD)[None, :]
    rest_column = 2 * HALF + tl.arange(0, REST_PAD)[None, :]
    # Where tokens stand is known since the step began, and the embedding waited for all of that.
    angle = cos_sin_ptr + tl.load(positions_ptr + token) * (2 * HALF)
    slot = tl.load(slots_ptr + token)
    Q_PARTS: tl.constexpr = (Q_HEADS + HEADS - 1) // HEADS if NORM or HALF > 0 else 0
    if PDL:
        gdc_launch_dependents()
        if token < AHEAD and part >= Q_PARTS:
            table = table_ptr + tl.load(rows_ptr + token).to(tl.int64) * table_stride
            _fetch_keys(
                k_cache_ptr, v_cache_ptr, table, (part - Q_PARTS) * HEADS, tl.load(positions_ptr + token),
                k_block, v_block, HEADS, K_HEADS, BLOCK_SIZE, DIM, THREADS,
            )  # fmt: skip
        gdc_wait()
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
        k_at = k_cache_ptr + slot // BLOCK_SIZE * k_block
        v_at = v_cache_ptr + slot // BLOCK_SIZE * v_block
        at = v_ptr + token * v_token + head * v_head
        v_first = tl.load(at + column, inside, other=0.0)
        v_second = tl.load(at + HALF + column, inside, other=0.0)
        v_rest = tl.load(at + rest_column, rest_inside, other=0.0)
        CACHE: tl.constexpr = k_cache_ptr.dtype.element_ty
        if CACHE.primitive_bitwidth == 8:
            offset = slot % BLOCK_SIZE
            run = head * (BLOCK_SIZE * (DIM + 4))
            scale_at = run + BLOCK_SIZE * DIM + 4 * offset
            _store_bytes(
                k_at + run + offset * DIM, 1, k_at + scale_at, first, second, rest, k_fixed, inside, rest_inside,
                head < K_HEADS, HALF, HALF_PAD, REST_PAD,
            )  # fmt: skip
            _store_bytes(
                v_at + run + offset, BLOCK_SIZE, v_at + scale_at, v_first, v_second, v_rest, v_fixed, inside,
                rest_inside, head < K_HEADS, HALF, HALF_PAD, REST_PAD,
            )  # fmt: skip
        else:
            place = (head * BLOCK_SIZE + slot % BLOCK_SIZE) * DIM
            tl.store(k_at + place + column, first.to(CACHE), inside)
            tl.store(k_at + place + HALF + column, second.to(CACHE), inside)
            tl.store(k_at + place + rest_column, rest.to(CACHE), rest_inside)
            tl.store(v_at + place + column, v_first.to(CACHE), inside)
            tl.store(v_at + place + HALF + column, v_second.to(CACHE), inside)
            tl.store(v_at + place + rest_column, v_rest.to(CACHE), rest_inside)


@dataclass(frozen=True, slots=True)
class Places:
    """Where the tokens of a step go, and where the keys of their sequences are."""

    slots: torch.Tensor  # [T] int64
    rows: torch.Tensor  # [R] int32, rows of the table
    table: torch.Tensor  # [num_rows, max_blocks] int32

    @staticmethod
    def of(batch: AttentionBatch, group: int) -> Places:
        return Places(batch.slots[group], batch.rows, batch.block_tables[group])


def rotate_and_store(
    qkv: Triple,
    positions: torch.Tensor,
    rotation: Rotation,
    kv: Pair,
    places: Places,
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
    # Each token is a sequence, and what a block has of a head is a multiple of what is asked for ahead.
    alone = places.rows.shape[0] == tokens <= _FEW_TOKENS and k_cache.stride(1) * k_cache.element_size() % 16 == 0
    rope_write_kv[(tokens, parts)](
        q, k, v, k_cache, v_cache, positions, places.slots, rotation.cos_sin if half else q, *norms, rotation.eps,
        places.rows, places.table, places.table.stride(0),
        q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
        k_cache.stride(0), v_cache.stride(0), *rotation.kv_scales,
        Q_HEADS=q_heads, K_HEADS=k_heads, HEADS=heads, BLOCK_SIZE=k_cache.shape[2],
        DIM=dim, HALF=half, HALF_PAD=triton.next_power_of_2(max(half, 1)),
        REST_PAD=triton.next_power_of_2(max(dim - 2 * half, 1)), NORM=bool(rotation.norms), PDL=pdl,
        AHEAD=triton.cdiv(_AHEAD, k_heads) if alone else 0, THREADS=_WARP * warps,
        num_warps=warps, launch_pdl=pdl,
    )  # fmt: skip
    return q

"""One family of kernels for prefill, decode and every mixture of the two.

A program takes one kv head and a block of queries of one sequence: the query heads that share the kv head times BLOCK_Q
queries form the rows of its matrices. It walks the keys its queries can see, tile by tile, through the block table.
When there are too few programs to fill the device, the keys are cut into splits of SPLIT_KEYS positions counted from 0,
each split leaves its part of the softmax in `part_*`, and `_merge` puts the parts together.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from cadence.kernels.attention_batch import AttentionBatch, AttentionShape

_PROGRAMS_WANTED = 512  # about four per processor of a large GPU
_MIN_SPLIT = 128  # keys; below this a split costs more than it brings


@triton.jit
def _find_sequence(start_ptr, block, num_seqs, BLOCK_Q: tl.constexpr):
    """The sequence that owns a query block: sequence r owns blocks from start[r] // BLOCK_Q + r on."""
    low = 0
    high = num_seqs - 1
    while low < high:
        mid = (low + high + 1) // 2
        if tl.load(start_ptr + mid) // BLOCK_Q + mid <= block:
            low = mid
        else:
            high = mid - 1
    return low


@triton.jit(do_not_specialize=["num_seqs", "num_tokens", "split_keys"])
def _attend(
    out_ptr, part_acc_ptr, part_max_ptr, part_sum_ptr, q_ptr, k_ptr, v_ptr,
    rows_ptr, start_ptr, lens_ptr, table_ptr,
    scale, softcap, num_seqs, num_tokens, split_keys,
    table_stride, q_token, q_head, k_block, v_block,
    HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, BLOCK_Q: tl.constexpr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, SOFTCAP: tl.constexpr, SPLIT: tl.constexpr, ONE_QUERY: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    block = tl.program_id(0)
    kv_head = tl.program_id(1)
    if ONE_QUERY:
        seq = block
        begin = tl.load(start_ptr + seq)
        first = 0
    else:
        seq = _find_sequence(start_ptr, block, num_seqs, BLOCK_Q)
        begin = tl.load(start_ptr + seq)
        first = (block - begin // BLOCK_Q - seq) * BLOCK_Q
    count = tl.load(start_ptr + seq + 1) - begin
    if first >= count:
        return
    seq_len = tl.load(lens_ptr + seq)
    table = table_ptr + tl.load(rows_ptr + seq).to(tl.int64) * table_stride

    line = tl.arange(0, BLOCK_Q * GROUP_PAD)
    query = first + line // GROUP_PAD
    head = line % GROUP_PAD
    used = (query < count) & (head < GROUP)
    token = (begin + query).to(tl.int64)
    head = kv_head * GROUP + head
    pos = seq_len - count + query
    dim = tl.arange(0, DIM_PAD)
    q_at = q_ptr + token[:, None] * q_token + head[:, None] * q_head + dim[None, :]
    q = tl.load(q_at, mask=used[:, None] & (dim[None, :] < DIM), other=0.0)

    key_begin = 0
    if WINDOW > 0:
        key_begin = tl.maximum(seq_len - count + first - WINDOW + 1, 0) // KEYS * KEYS
    key_end = seq_len - count + tl.minimum(first + BLOCK_Q, count)
    if SPLIT:
        split = tl.program_id(2)
        key_begin = tl.maximum(key_begin, split * split_keys)
        key_end = tl.minimum(key_end, (split + 1) * split_keys)

    top = tl.full([BLOCK_Q * GROUP_PAD], -1e30, tl.float32)  # finite: differences of maxima are never NaN
    total = tl.zeros([BLOCK_Q * GROUP_PAD], tl.float32)
    acc = tl.zeros([BLOCK_Q * GROUP_PAD, DIM_PAD], tl.float32)
    for tile in range(key_begin, key_end, KEYS):
        key = tile + tl.arange(0, KEYS)
        stored = key < key_end  # beyond lies whatever the pool held before
        page = tl.load(table + key // BLOCK_SIZE, mask=stored, other=0).to(tl.int64)
        inside = (kv_head * BLOCK_SIZE + key % BLOCK_SIZE) * DIM
        k_at = k_ptr + (page * k_block + inside)[None, :] + dim[:, None]
        k = tl.load(k_at, mask=stored[None, :] & (dim[:, None] < DIM), other=0.0)
        score = tl.dot(q, k, input_precision=PRECISION) * scale
        if SOFTCAP:
            score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
        seen = stored[None, :] & (key[None, :] <= pos[:, None])
        if WINDOW > 0:
            seen = seen & (key[None, :] > pos[:, None] - WINDOW)
        score = tl.where(seen, score * 1.4426950408889634, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        shrink = tl.exp2(top - new_top)
        weight = tl.exp2(score - new_top[:, None])
        total = total * shrink + tl.sum(weight, 1)
        v_at = v_ptr + (page * v_block + inside)[:, None] + dim[None, :]
        v = tl.load(v_at, mask=stored[:, None] & (dim[None, :] < DIM), other=0.0)
        acc = acc * shrink[:, None] + tl.dot(weight.to(v.dtype), v, input_precision=PRECISION)
        top = new_top

    place = token * HEADS + head
    inside_out = used[:, None] & (dim[None, :] < DIM)
    if SPLIT:
        place += tl.program_id(2).to(tl.int64) * num_tokens * HEADS
        tl.store(part_max_ptr + place, top, mask=used)
        tl.store(part_sum_ptr + place, total, mask=used)
        tl.store(part_acc_ptr + place[:, None] * DIM + dim[None, :], acc, mask=inside_out)
    else:
        result = acc / tl.where(used, total, 1.0)[:, None]
        tl.store(out_ptr + place[:, None] * DIM + dim[None, :], result.to(out_ptr.dtype.element_ty), mask=inside_out)


@triton.jit(do_not_specialize=["num_splits", "lines"])
def _merge(
    out_ptr, part_acc_ptr, part_max_ptr, part_sum_ptr, num_splits, lines,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr,
):  # fmt: skip
    """One (token, head) per program; parts are [num_splits, lines, ...] and taken in order."""
    line = tl.program_id(0).to(tl.int64)
    dim = tl.arange(0, DIM_PAD)
    top = -1e30
    total = 0.0
    acc = tl.zeros([DIM_PAD], tl.float32)
    for split in range(num_splits):
        place = line + lines.to(tl.int64) * split
        part_top = tl.load(part_max_ptr + place)
        part = tl.load(part_acc_ptr + place * DIM + dim, mask=dim < DIM, other=0.0)
        new_top = tl.maximum(top, part_top)
        shrink = tl.exp2(top - new_top)
        grow = tl.exp2(part_top - new_top)
        total = total * shrink + tl.load(part_sum_ptr + place) * grow
        acc = acc * shrink + part * grow
        top = new_top
    tl.store(out_ptr + line * DIM + dim, (acc / total).to(out_ptr.dtype.element_ty), mask=dim < DIM)


@dataclass(frozen=True, slots=True)
class Tiling:
    """How a call is cut into programs."""

    block_q: int  # queries per program
    keys: int  # keys per tile
    stages: int  # tiles in flight
    num_splits: int
    split_keys: int  # keys per split, a multiple of `keys`


def choose_tiling(batch: AttentionBatch, shape: AttentionShape, q: torch.Tensor) -> Tiling:
    group = triton.next_power_of_2(shape.num_heads // shape.num_kv_heads)
    decode = batch.max_query_len == 1
    # Wider rows, fewer of them: queries, keys and values of all stages stay under 100 KB of shared memory.
    row_bytes = triton.next_power_of_2(shape.head_dim) * q.element_size()
    lines, keys, stages = (128, 64, 3) if row_bytes <= 256 else (64, 32, 2) if row_bytes <= 512 else (32, 16, 2)
    lines = 16 if decode else min(lines, max(triton.next_power_of_2(batch.max_query_len * group), 16))
    block_q = max(lines // group, 1)
    blocks = batch.num_sequences if decode else q.shape[0] // block_q + batch.num_sequences
    longest = min(batch.max_seq_len, shape.window + batch.max_query_len) if shape.window else batch.max_seq_len
    wanted = min(_PROGRAMS_WANTED // max(blocks * shape.num_kv_heads, 1), triton.cdiv(longest, _MIN_SPLIT))
    if wanted <= 1:
        return Tiling(block_q, keys, stages, num_splits=1, split_keys=0)
    split_keys = triton.cdiv(triton.cdiv(longest, wanted), keys) * keys
    return Tiling(block_q, keys, stages, triton.cdiv(batch.max_seq_len, split_keys), split_keys)


def paged_attention(
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    batch: AttentionBatch,
    group: int,
    shape: AttentionShape,
) -> torch.Tensor:
    """q [T, Hq, D], kv = caches [num_blocks, Hk, block_size, D] -> [T, Hq, D]."""
    num_tokens, heads, dim = q.shape
    out = torch.empty((num_tokens, heads, dim), dtype=q.dtype, device=q.device)
    tiling = choose_tiling(batch, shape, q)
    split = tiling.num_splits > 1
    parts = _parts(out, tiling.num_splits) if split else (out, out, out)
    one_query = batch.max_query_len == 1
    blocks = batch.num_sequences if one_query else num_tokens // tiling.block_q + batch.num_sequences
    per_kv = heads // shape.num_kv_heads
    table, (k, v) = batch.block_tables[group], kv
    _attend[(blocks, shape.num_kv_heads, tiling.num_splits)](
        out, *parts, q, k, v, batch.rows, batch.query_start, batch.seq_lens, table,
        shape.scale, shape.softcap, batch.num_sequences, num_tokens, tiling.split_keys,
        table.stride(0), q.stride(0), q.stride(1), k.stride(0), v.stride(0),
        HEADS=heads, GROUP=per_kv, GROUP_PAD=triton.next_power_of_2(per_kv), BLOCK_Q=tiling.block_q,
        DIM=dim, DIM_PAD=max(triton.next_power_of_2(dim), 16), BLOCK_SIZE=k.shape[2], KEYS=tiling.keys,
        WINDOW=shape.window, SOFTCAP=shape.softcap > 0.0, SPLIT=split, ONE_QUERY=one_query,
        PRECISION="tf32x3" if q.dtype is torch.float32 else "tf32", num_warps=4, num_stages=tiling.stages,
    )  # fmt: skip
    if split:
        lines = num_tokens * heads
        _merge[(lines,)](out, *parts, tiling.num_splits, lines, DIM=dim, DIM_PAD=triton.next_power_of_2(dim))
    return out


def _parts(out: torch.Tensor, num_splits: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Unnormalised sums [splits, T, Hq, D], maxima and sums of weights [splits, T, Hq], all float32."""
    acc = torch.empty((num_splits, *out.shape), dtype=torch.float32, device=out.device)
    sums = torch.empty((2, num_splits, *out.shape[:2]), dtype=torch.float32, device=out.device)
    return acc, sums[0], sums[1]

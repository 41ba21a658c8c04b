"""Attention for sequences with many queries each.

A program takes one kv head and a block of queries of one sequence: the query heads that share the kv head times BLOCK_Q
queries are the rows of its matrices. It walks the keys its queries can see from position 0 on (with a window or a
chunk, from the first tile that holds a visible key), so a query's result is the same whatever block it falls in.
"""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from cadence.kernels.interface.attention_batch import AttentionBatch, AttentionShape
from cadence.kernels.triton.attention.attention_bytes import even_queries, fold_bytes
from cadence.kernels.triton.attention.attention_tile import bias_lines, first_seen, fold_keys
from cadence.kernels.triton.common.launch import quick


@dataclass(frozen=True, slots=True)
class PrefillTile:
    rows: int  # queries times heads of a group, per program
    keys: int  # per tile
    warps: int
    stages: int  # tiles in flight


@triton.jit
def _find_sequence(start_ptr, block, num_seqs, num_before, BLOCK_Q: tl.constexpr, STEP: tl.constexpr):
    """The sequence that owns a query block: sequence r owns blocks from (start[r] - num_before) // BLOCK_Q + r on."""
    owned = 0
    for base in range(0, num_seqs, STEP):
        seq = base + tl.arange(0, STEP)
        start = tl.load(start_ptr + seq, mask=seq < num_seqs, other=0)
        begun = ((start - num_before) // BLOCK_Q + seq <= block) & (seq < num_seqs)
        owned += tl.sum(begun.to(tl.int32))
    return owned - 1


@quick
@triton.jit(do_not_specialize=["rows_ptr", "start_ptr", "lens_ptr", "num_seqs", "num_before", "num_blocks"])
def _attend(
    out_ptr, q_ptr, k_ptr, v_ptr, rows_ptr, start_ptr, lens_ptr, table_ptr, bias_ptr,
    scale, softcap, num_seqs, num_before, num_blocks,
    table_stride, q_token, q_head, k_block, v_block,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr, BLOCK_Q: tl.constexpr,
    DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, KEYS: tl.constexpr,
    WINDOW: tl.constexpr, CHUNK: tl.constexpr, BOTH: tl.constexpr, SOFTCAP: tl.constexpr, REACH: tl.constexpr,
    PRECISION: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    # Late blocks see the most keys: they start first.
    kv_head = tl.program_id(0) % KV_HEADS
    block = num_blocks - 1 - tl.program_id(0) // KV_HEADS
    seq = _find_sequence(start_ptr, block, num_seqs, num_before, BLOCK_Q, 128)
    begin = tl.load(start_ptr + seq)
    first = (block - (begin - num_before) // BLOCK_Q - seq) * BLOCK_Q
    count = tl.load(start_ptr + seq + 1) - begin
    if first >= count:
        return
    seq_len = tl.load(lens_ptr + seq)
    table = table_ptr + tl.load(rows_ptr + seq).to(tl.int64) * table_stride

    ROWS: tl.constexpr = BLOCK_Q * GROUP_PAD
    RUN: tl.constexpr = min(KEYS, BLOCK_SIZE) if ROWS >= 64 and q_ptr.dtype.element_ty.primitive_bitwidth == 16 else 1
    line = tl.arange(0, ROWS)
    query = first + line // GROUP_PAD
    head = kv_head * GROUP + line % GROUP_PAD
    used = (query < count) & (line % GROUP_PAD < GROUP)
    place = (begin + query).to(tl.int64)
    dim = tl.arange(0, DIM_PAD)
    q_at = q_ptr + place[:, None] * q_token + head[:, None] * q_head + dim[None, :]
    if PDL:  # lengths and tables are known since the step began, and the embedding waited for all of that
        gdc_wait()
    q = tl.load(q_at, mask=used[:, None] & (dim[None, :] < DIM), other=0.0)

    low = seq_len - count + first  # position of the first query
    high = seq_len - count + tl.minimum(first + BLOCK_Q, count)  # one past the last query's
    seen_end, full_end = high, low + 1  # what some query sees ends there, what all of them see here, or a tile before
    if BOTH:
        seen_end, full_end = seq_len, seq_len
        if WINDOW > 0:
            seen_end = tl.minimum(high - 1 + WINDOW, seq_len)
            full_end = tl.minimum(low + WINDOW, seq_len)
    pos = seq_len - count + query
    acc = tl.zeros([ROWS, DIM_PAD], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)  # finite: differences of maxima are never NaN
    seen_begin = 0
    full_begin = 0
    full_end = full_end // KEYS * KEYS
    bias_line = bias_lines(bias_ptr, head, HEADS, REACH)
    if WINDOW > 0 or CHUNK > 0:
        seen_begin = tl.maximum(first_seen(low, WINDOW, CHUNK), 0) // KEYS * KEYS
        first_of_last = tl.maximum(first_seen(high - 1, WINDOW, CHUNK), 0)
        full_begin = tl.minimum((first_of_last + KEYS - 1) // KEYS * KEYS, seen_end)
        full_end = tl.maximum(full_begin, full_end)
    if k_ptr.dtype.element_ty.primitive_bitwidth == 8:
        HALF: tl.constexpr = tl.float32 if q_ptr.dtype.element_ty == tl.float32 else tl.float16
        even, inverse = even_queries(q, HALF)
        if WINDOW > 0 or CHUNK > 0:
            acc, total, top = fold_bytes(
                acc, total, top, even, inverse, pos, seen_begin, full_begin,
                k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
                DIM, DIM_PAD, BLOCK_SIZE, KEYS, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION, False,
            )  # fmt: skip
        acc, total, top = fold_bytes(
            acc, total, top, even, inverse, pos, full_begin, full_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, False, PRECISION, False,
        )  # fmt: skip
        acc, total, top = fold_bytes(
            acc, total, top, even, inverse, pos, full_end, seen_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION, False,
        )  # fmt: skip
    else:
        if WINDOW > 0 or CHUNK > 0:
            acc, total, top = fold_keys(
                acc, total, top, q, pos, seen_begin, full_begin,
                k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
                DIM, DIM_PAD, BLOCK_SIZE, KEYS, RUN, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION,
            )  # fmt: skip
        acc, total, top = fold_keys(
            acc, total, top, q, pos, full_begin, full_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, RUN, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, False, PRECISION,
        )  # fmt: skip
        acc, total, top = fold_keys(
            acc, total, top, q, pos, full_end, seen_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, RUN, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION,
        )  # fmt: skip

    if PDL:
        gdc_launch_dependents()
    result = acc / tl.where(used, total, 1.0)[:, None]
    out_at = out_ptr + (place * HEADS + head)[:, None] * DIM + dim[None, :]
    tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=used[:, None] & (dim[None, :] < DIM))


# Padded head size -> tile. Each needs less than 100 KB of shared memory.
_TILES_OF_HALVES = {
    64: PrefillTile(64, 64, 4, 3),
    128: PrefillTile(64, 32, 4, 3),
    256: PrefillTile(64, 32, 4, 2),
    512: PrefillTile(32, 16, 4, 2),
}
_TILES_OF_FLOATS = {
    64: PrefillTile(32, 32, 4, 3),
    128: PrefillTile(32, 32, 4, 2),
    256: PrefillTile(16, 16, 4, 2),
    512: PrefillTile(16, 16, 4, 1),
}


def choose_prefill_tile(shape: AttentionShape, q: torch.Tensor) -> PrefillTile:
    """A function of the layer alone, never of the batch."""
    tiles = _TILES_OF_HALVES if q.element_size() == 2 else _TILES_OF_FLOATS
    return tiles[min(max(triton.next_power_of_2(shape.head_dim), 64), 512)]


@dataclass(frozen=True, slots=True)
class QuerySpan:
    """Some sequences of a batch, one after another, and their queries."""

    first: int  # sequence
    end: int  # one past the last
    query: int  # first
    num_queries: int


def attend_prefill(
    out: torch.Tensor,
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    batch: AttentionBatch,
    group: int,
    shape: AttentionShape,
    tile: PrefillTile,
    span: QuerySpan,
    pdl: bool = False,
) -> None:
    """Fills out [T, Hq, D] for the queries of a span."""
    _, heads, dim = q.shape
    per_kv = heads // shape.num_kv_heads
    group_pad = triton.next_power_of_2(per_kv)
    block_q = max(tile.rows // group_pad, 1)
    num_seqs, first = span.end - span.first, span.first
    num_blocks = span.num_queries // block_q + num_seqs
    table, bias, (k, v) = batch.block_tables[group], shape.bias, kv
    _attend[(num_blocks * shape.num_kv_heads,)](
        out, q, k, v, batch.rows[first:], batch.query_start[first:], batch.seq_lens[first:], table,
        bias.table if bias.reach else q, shape.scale, shape.softcap, num_seqs, span.query, num_blocks,
        table.stride(0), q.stride(0), q.stride(1), k.stride(0), v.stride(0),
        HEADS=heads, KV_HEADS=shape.num_kv_heads, GROUP=per_kv, GROUP_PAD=group_pad, BLOCK_Q=block_q,
        DIM=dim, DIM_PAD=max(triton.next_power_of_2(dim), 16), BLOCK_SIZE=k.shape[2], KEYS=tile.keys,
        WINDOW=shape.window, CHUNK=shape.chunk, BOTH=shape.seen_around(batch.sees)[1] > 0,
        SOFTCAP=shape.softcap > 0.0, REACH=bias.reach,
        PRECISION="tf32x3" if q.dtype is torch.float32 else "tf32", PDL=pdl,
        num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip

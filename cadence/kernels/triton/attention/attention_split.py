"""Attention for sequences with one query each, or a few: bound by the reading of keys and values.

A program takes all queries of one sequence for one kv head, and one of SPLITS even shares of the keys. The launch
depends on the number of sequences alone: how many keys a share has, and how many shares have any, each program works
out from the sequence's length, so that a captured graph stays right as sequences grow. The last program of a sequence
to finish merges what the others left in `part_*`, in the order of the shares.
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
from cadence.kernels.triton.common.private import num_processors

_MAX_SPLITS = 16
_WHOLE = 256  # keys; a sequence of no more is never split ...
_WHOLE_BESIDE_MANY = 512  # ... and where others keep the device busy, one of no more than these
_COUNTERS = 1 << 12  # a launch splits only when it has less than some pairs of sequence and kv head per processor
_INTERPRETED_PROCESSORS = 132


@dataclass(frozen=True, slots=True)
class SplitTile:
    keys: int  # per tile
    warps: int
    stages: int  # tiles in flight
    splits: int  # shares of the keys
    whole: int = _WHOLE  # keys; a sequence of no more is one share


@triton.jit
def _merge(
    part_ptr, level_ptr, at, parts,
    LINES: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """What the shares of one (sequence, kv head) left from line `at` on, LINES lines each -> [LINES, DIM_PAD]."""
    line = tl.arange(0, LINES)
    dim = tl.arange(0, DIM_PAD)
    acc = tl.zeros([LINES, DIM_PAD], tl.float32)
    total = tl.zeros([LINES], tl.float32)
    top = tl.full([LINES], -1e30, tl.float32)
    for base in range(0, parts, STEP):
        part = base + tl.arange(0, STEP)
        place = at + part[:, None] * LINES + line[None, :]
        level = tl.load(level_ptr + place, mask=part[:, None] < parts, other=-1e30, cache_modifier=".cg")
        value = tl.load(
            part_ptr + place[:, :, None] * DIM + dim[None, None, :],
            mask=(part[:, None, None] < parts) & (dim[None, None, :] < DIM), other=0.0, cache_modifier=".cg",
        )  # fmt: skip
        new_top = tl.maximum(top, tl.max(level, 0))
        weight = tl.exp2(level - new_top[None, :])
        shrink = tl.exp2(top - new_top)
        total = total * shrink + tl.sum(weight, 0)
        acc = acc * shrink[:, None] + tl.sum(value * weight[:, :, None], 0)
        top = new_top
    return acc / total[:, None]


@quick
@triton.jit(do_not_specialize=["start_ptr", "rows_ptr", "lens_ptr"])
def _attend(
    out_ptr, part_ptr, level_ptr, arrived_ptr, q_ptr, k_ptr, v_ptr, rows_ptr, start_ptr, lens_ptr, table_ptr,
    bias_ptr, scale, softcap, table_stride, q_token, q_head, k_block, v_block,
    HEADS: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, GROUP_PAD: tl.constexpr,
    QUERIES: tl.constexpr, ROWS: tl.constexpr, DIM: tl.constexpr, DIM_PAD: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    KEYS: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, BOTH: tl.constexpr, SOFTCAP: tl.constexpr,
    REACH: tl.constexpr, SPLITS: tl.constexpr, PRECISION: tl.constexpr, SINGLE: tl.constexpr, WHOLE: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    BYTES: tl.constexpr = k_ptr.dtype.element_ty.primitive_bitwidth == 8
    kv_head = tl.program_id(0)
    seq = tl.program_id(1)
    split = tl.program_id(2)
    seq_len = tl.load(lens_ptr + seq)
    table = table_ptr + tl.load(rows_ptr + seq).to(tl.int64) * table_stride
    if SINGLE:
        begin = seq
        count = 1
    else:
        begin = tl.load(start_ptr + seq)
        count = tl.load(start_ptr + seq + 1) - begin
    line = tl.arange(0, ROWS)
    query = line // GROUP_PAD
    head = kv_head * GROUP + line % GROUP_PAD
    used = (query < count) & (line % GROUP_PAD < GROUP)
    place = (begin + query).to(tl.int64)
    dim = tl.arange(0, DIM_PAD)
    q_at = q_ptr + place[:, None] * q_token + head[:, None] * q_head + dim[None, :]
    if PDL:  # lengths and tables are known since the step began, and the embedding waited for all of that
        gdc_launch_dependents()
        gdc_wait()
    q = tl.load(q_at, mask=used[:, None] & (dim[None, :] < DIM), other=0.0)

    # Even shares in whole tiles; a short sequence is one share, which saves the merge.
    low = 0
    if WINDOW > 0 or CHUNK > 0:
        low = tl.maximum(first_seen(seq_len - count, WINDOW, CHUNK), 0) // KEYS * KEYS
    share = tl.cdiv(tl.cdiv(seq_len - low, KEYS), SPLITS) * KEYS
    if seq_len - low <= WHOLE:
        share = WHOLE
    parts = tl.maximum(tl.cdiv(seq_len - low, share), 1)
    if split >= parts:
        return
    key_begin = low + split * share
    key_end = tl.minimum(key_begin + share, seq_len)

    pos = seq_len - count + query
    bias_line = bias_lines(bias_ptr, head, HEADS, REACH)
    total = tl.zeros([ROWS], tl.float32)
    top = tl.full([ROWS], -1e30, tl.float32)  # finite: differences of maxima are never NaN
    if BYTES:
        HALF: tl.constexpr = tl.float32 if q_ptr.dtype.element_ty == tl.float32 else tl.float16
        even, inverse = even_queries(q, HALF)
        turned = tl.zeros([DIM_PAD, ROWS], tl.float32)
        full = key_begin  # keys before it are seen by every query, in whole tiles
        if WINDOW == 0 and CHUNK == 0:
            seen_by_all = seq_len if BOTH else seq_len - count + 1
            full = tl.maximum(tl.minimum(key_end, seen_by_all) // KEYS * KEYS, key_begin)
            turned, total, top = fold_bytes(
                turned, total, top, even.T, inverse, pos, key_begin, full,
                k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
                DIM, DIM_PAD, BLOCK_SIZE, KEYS, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, False, PRECISION, True,
            )  # fmt: skip
        turned, total, top = fold_bytes(
            turned, total, top, even.T, inverse, pos, full, key_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION, True,
        )  # fmt: skip
        acc = turned.T
    else:
        acc, total, top = fold_keys(
            tl.zeros([ROWS, DIM_PAD], tl.float32), total, top, q, pos, key_begin, key_end,
            k_ptr, v_ptr, table, kv_head, k_block, v_block, scale, softcap, bias_line,
            DIM, DIM_PAD, BLOCK_SIZE, KEYS, 1, WINDOW, CHUNK, BOTH, SOFTCAP, REACH, True, PRECISION,
        )  # fmt: skip

    # A row may have seen no key of this share: it lies outside its window or chunk, or holds keys of later queries.
    some = tl.where(total > 0.0, total, 1.0)
    result = acc / some[:, None]
    if parts == 1:
        out_at = out_ptr + (place * HEADS + head)[:, None] * DIM + dim[None, :]
        tl.store(out_at, result.to(out_ptr.dtype.element_ty), mask=used[:, None] & (dim[None, :] < DIM))
    else:
        LINES: tl.constexpr = QUERIES * GROUP_PAD
        pair = seq * KV_HEADS + kv_head
        at = pair.to(tl.int64) * SPLITS * LINES
        mine = at + split * LINES + line
        kept = line < LINES
        tl.store(level_ptr + mine, tl.where(total > 0.0, top + tl.log2(some), -1e30), mask=kept)
        tl.store(part_ptr + mine[:, None] * DIM + dim[None, :], result, mask=kept[:, None] & (dim[None, :] < DIM))
        tl.debug_barrier()  # every thread's stores come before the arrival
        if tl.atomic_add(arrived_ptr + pair, 1, sem="acq_rel") == parts - 1:
            tl.store(arrived_ptr + pair, 0)
            STEP: tl.constexpr = max(min(SPLITS, 8192 // (LINES * DIM_PAD)), 1)
            merged = _merge(part_ptr, level_ptr, at, parts, LINES, DIM, DIM_PAD, STEP)
            out_line = tl.arange(0, LINES)
            out_query = out_line // GROUP_PAD
            out_head = kv_head * GROUP + out_line % GROUP_PAD
            out_used = (out_query < count) & (out_line % GROUP_PAD < GROUP)
            out_at = ((begin + out_query).to(tl.int64) * HEADS + out_head)[:, None] * DIM + dim[None, :]
            out_mask = out_used[:, None] & (dim[None, :] < DIM)
            tl.store(out_ptr + out_at, merged.to(out_ptr.dtype.element_ty), mask=out_mask)


def choose_split_tile(num_seqs: int, shape: AttentionShape, entry_bytes: int, processors: int) -> SplitTile:
    """A function of the number of sequences, never of their lengths, and the same for numbers close together: each
    form of the kernel takes a second to compile, and users should meet none that was not met before.

    A handful of sequences are split until there is a program per processor. Of some dozens, several programs with
    small tiles share a processor, and splits even out what long sequences take. Of many, each is one program.
    """
    programs, available = _rounded(num_seqs) * shape.num_kv_heads, processors
    tile_bytes, warps, splits, whole = 16384, 4, 1, _WHOLE
    if 4 * programs <= available:
        splits = _power_of_two(available // programs)
    elif programs <= available:
        tile_bytes, warps, splits = 8192, 2, _power_of_two(7 * available // programs)
    elif programs <= 4 * available:
        tile_bytes, warps, splits = 8192, 2, min(_power_of_two(10 * available // programs), 4)
        whole = _WHOLE_BESIDE_MANY
    row_bytes = triton.next_power_of_2(shape.head_dim) * entry_bytes
    return SplitTile(max(min(tile_bytes // row_bytes, 128), 16), warps, 3, min(splits, _MAX_SPLITS), whole)


def choose_single_tile(num_seqs: int, shape: AttentionShape, entry_bytes: int, processors: int) -> SplitTile:
    """Of sequences with one query each. Entries of eight bits that few rows are multiplied by: programs of one warp, in
    which no thread waits for another's keys, and four of them on a processor."""
    if entry_bytes > 1 or shape.num_heads // shape.num_kv_heads > 8:
        return choose_split_tile(num_seqs, shape, entry_bytes, processors)
    programs = _rounded(num_seqs) * shape.num_kv_heads
    splits = min(_power_of_two(max(4 * processors // programs, 1)), _MAX_SPLITS)
    keys = max(min(8192 // triton.next_power_of_2(shape.head_dim), 128), 16)
    return SplitTile(keys, 1, 2, splits, _WHOLE if 4 * programs <= processors else _WHOLE_BESIDE_MANY)


def _rounded(num_seqs: int) -> int:
    return triton.next_power_of_2(num_seqs) if num_seqs < 8 else triton.cdiv(num_seqs, 8) * 8


def entry_bytes(q: torch.Tensor, cache: torch.Tensor) -> int:
    """What tiles are measured by: what entries take in memory, or in registers where those are of four bytes."""
    return 4 if q.element_size() == 4 else cache.element_size()


def _power_of_two(most: int) -> int:
    """The largest that is not above `most`."""
    return 1 << (most.bit_length() - 1)


def attend_split(
    out: torch.Tensor,
    q: torch.Tensor,
    kv: tuple[torch.Tensor, torch.Tensor],
    batch: AttentionBatch,
    group: int,
    shape: AttentionShape,
    tile: SplitTile,
    sequences: slice,
    max_queries: int,
    counters: torch.Tensor,
    pdl: bool,
) -> None:
    """Fills out [T, Hq, D] for the queries of some sequences, each of at most max_queries.

    counters: those of a `SplitState`."""
    _, heads, dim = q.shape
    per_kv = heads // shape.num_kv_heads
    group_pad = triton.next_power_of_2(per_kv)
    queries = triton.next_power_of_2(max_queries)
    rows, lens = batch.rows[sequences], batch.seq_lens[sequences]
    starts = batch.query_start[sequences.start :]
    num_seqs, splits = rows.shape[0], tile.splits
    parts, levels = _parts(out, num_seqs * shape.num_kv_heads * splits * queries * group_pad if splits > 1 else 0)
    table, bias, (k, v) = batch.block_tables[group], shape.bias, kv
    _attend[(shape.num_kv_heads, num_seqs, splits)](
        out, parts, levels, counters, q, k, v, rows, starts, lens, table,
        bias.table if bias.reach else q, shape.scale, shape.softcap,
        table.stride(0), q.stride(0), q.stride(1), k.stride(0), v.stride(0),
        HEADS=heads, KV_HEADS=shape.num_kv_heads, GROUP=per_kv, GROUP_PAD=group_pad,
        QUERIES=queries, ROWS=max(queries * group_pad, 8 if k.element_size() == 1 else 16),
        DIM=dim, DIM_PAD=max(triton.next_power_of_2(dim), 16),
        BLOCK_SIZE=k.shape[2], KEYS=tile.keys, WINDOW=shape.window, CHUNK=shape.chunk,
        BOTH=shape.seen_around(batch.sees)[1] > 0,
        SOFTCAP=shape.softcap > 0.0, REACH=bias.reach, SPLITS=splits,
        PRECISION="tf32x3" if q.dtype is torch.float32 else "tf32", SINGLE=sequences.start == 0 and max_queries == 1,
        WHOLE=max(tile.whole, tile.keys), PDL=pdl, num_warps=tile.warps, num_stages=tile.stages, launch_pdl=pdl,
    )  # fmt: skip


def _parts(out: torch.Tensor, lines: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Results of the shares [lines, D] and the logarithms of their sums of weights [lines], both float32."""
    parts = torch.empty((lines, out.shape[-1]), dtype=torch.float32, device=out.device)
    return parts, torch.empty(lines, dtype=torch.float32, device=out.device)


class SplitState:
    """What launches on one device share: they run one after the other (one stream)."""

    def __init__(self, device: torch.device) -> None:
        """A launch to be captured runs once before, to be compiled: this is made then, outside the graph."""
        # [_COUNTERS] int32: programs arrived per (sequence, kv head). Zero before and after every launch.
        self.counters = torch.zeros(_COUNTERS, dtype=torch.int32, device=device)
        self.processors = _INTERPRETED_PROCESSORS if device.type == "cpu" else num_processors(device.index or 0)

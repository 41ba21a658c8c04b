"""What a model that drafts computes after a forward of its target, in Triton: a launch per KV group."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import triton
import triton.language as tl

from cadence.kernels.interface.row_ops import Chosen, DraftBatch, DraftState, RowState
from cadence.kernels.triton.common.launch import quick

_AT_ONCE = 256  # tokens of a run that one program gathers


@triton.jit
def store_padding(ids_ptr, positions_ptr, slots_ptr, token, num_tokens):
    """Zeros at those of `token` [n] that the batch has room for."""
    inside = token < num_tokens
    tl.store(ids_ptr + token, tl.zeros_like(token), mask=inside)
    tl.store(positions_ptr + token, tl.zeros_like(token).to(tl.int64), mask=inside)
    tl.store(slots_ptr + token, tl.zeros_like(token).to(tl.int64), mask=inside)


@quick
@triton.jit(do_not_specialize=["num_rows", "num_tokens", "max_len", "num_ids"])
def _begin(
    rows_ptr, start_ptr, line_start_ptr, ids_ptr, positions_ptr, slots_ptr, lens_ptr,
    at_ptr, line_rows_ptr, lengths_ptr, line_lens_ptr,
    tokens_ptr, computed_ptr, quiet_ptr, drafted_ptr, before_ptr, table_ptr,
    tokens_stride, scalar_stride, drafted_stride, before_stride, table_stride, num_rows, num_tokens, max_len, num_ids,
    AHEAD: tl.constexpr, BLOCK_SIZE: tl.constexpr, AT_ONCE: tl.constexpr, HAS_TABLE: tl.constexpr,
):  # fmt: skip
    """A program per run and piece of it; those of the run after the last fill in the padding. before: what the proposer
    had of each row, which stays as it is while all programs look. Without a table, slots_ptr is that of positions."""
    run = tl.program_id(0)
    begin = tl.load(start_ptr + run)
    token = begin + tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    if run == num_rows:
        store_padding(ids_ptr, positions_ptr, slots_ptr, token, num_tokens)
    else:
        row = tl.load(rows_ptr + run).to(tl.int64)
        end = tl.load(start_ptr + run + 1)
        line = tl.load(line_start_ptr + run)
        has_line = line < tl.load(line_start_ptr + run + 1)
        newest = tl.load(computed_ptr + row * scalar_stride)
        limit = newest + (has_line & (AHEAD == 0)).to(tl.int32)
        idle = (tl.load(quiet_ptr + row * scalar_stride) != 0) | (limit > max_len)
        start = tl.where(idle, 0, tl.minimum(tl.load(before_ptr + row * before_stride), newest))
        num_real = tl.where(idle, 0, tl.minimum(limit - start, end - begin))
        inside = token < end
        real = token < begin + num_real
        position = tl.where(real, start + token - begin, 0)
        ids = tl.load(tokens_ptr + row * tokens_stride + position + AHEAD, mask=real, other=0)
        tl.store(ids_ptr + token, tl.minimum(ids, num_ids - 1), mask=inside)
        tl.store(positions_ptr + token, position.to(tl.int64), mask=inside)
        if HAS_TABLE:
            block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
            tl.store(slots_ptr + token, tl.where(real, block * BLOCK_SIZE + position % BLOCK_SIZE, 0), mask=inside)
        if tl.program_id(1) == 0:
            tl.store(lens_ptr + run, start + end - begin)
            tl.store(drafted_ptr + row * drafted_stride, start + num_real, mask=idle == 0)
            tl.store(at_ptr + line, (begin + tl.maximum(num_real, 1) - 1).to(tl.int64), mask=has_line)
            tl.store(line_rows_ptr + line, row.to(tl.int32), mask=has_line)
            tl.store(lengths_ptr + line, newest + 1, mask=has_line)
            tl.store(line_lens_ptr + line, tl.maximum(start + num_real, 1), mask=has_line)


@quick
@triton.jit(do_not_specialize=["longest", "num_ids", "draft"])
def _take(
    rows_ptr, chosen_ptr, peaks_ptr, ids_ptr, positions_ptr, slots_ptr, lens_ptr, lengths_ptr,
    tokens_ptr, computed_ptr, max_ptr, quiet_ptr, drafts_ptr, drafted_ptr, most_ptr, table_ptr,
    tokens_stride, scalar_stride, drafted_stride, most_stride, table_stride, longest, num_ids, draft,
    AHEAD: tl.constexpr, LAST: tl.constexpr, AGAIN: tl.constexpr, BLOCK_SIZE: tl.constexpr, HAS_TABLE: tl.constexpr,
):  # fmt: skip
    """AGAIN: the row has taken the draft before, for another group: only its slot is missing. Without a table, there
    are no slots."""
    line = tl.program_id(0)
    row = tl.load(rows_ptr + line).to(tl.int64)
    newest = tl.load(computed_ptr + row * scalar_stride)
    place, position = newest + 1 + draft, newest + 1 + draft - AHEAD
    heard = tl.load(quiet_ptr + row * scalar_stride) == 0
    count = tl.load(drafts_ptr + row * scalar_stride)
    if AGAIN:
        taken = heard & (count == draft + 1)
    else:
        peak = tl.load(peaks_ptr + line)
        kept_up = (draft > 0) | (tl.load(drafted_ptr + row * drafted_stride) == newest + 1 - AHEAD)
        fits = (draft < tl.load(most_ptr + row * most_stride)) & (place < tl.load(max_ptr + row * scalar_stride) - 1)
        taken = heard & kept_up & fits & (count == draft) & (position < longest)
        taken = taken & (peak == peak) & (tl.abs(peak) != float("inf"))
        token = tl.load(chosen_ptr + line)
        tl.store(tokens_ptr + row * tokens_stride + place, token, mask=taken)
        tl.store(drafts_ptr + row * scalar_stride, draft + 1, mask=taken)
        if LAST == 0:
            if AHEAD == 0:
                tl.store(drafted_ptr + row * drafted_stride, position + 1, mask=taken)
            tl.store(ids_ptr + line, tl.where(taken, tl.minimum(token, num_ids - 1), 0))
            tl.store(positions_ptr + line, tl.where(taken, position, 0).to(tl.int64))
            tl.store(lens_ptr + line, tl.where(taken, position + 1, 1))
            tl.store(lengths_ptr + line, place + 1)
    if HAS_TABLE and LAST == 0:
        block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE, mask=taken, other=0).to(tl.int64)
        tl.store(slots_ptr + line, tl.where(taken, block * BLOCK_SIZE + position % BLOCK_SIZE, 0))


def begin_drafts(state: RowState, proposer: DraftState, batch: DraftBatch) -> None:
    """`RowOps.begin_drafts`."""
    first = batch.first
    num_rows, num_tokens = first.rows.shape[0], first.ids.shape[0]
    at_once = min(_AT_ONCE, triton.next_power_of_2(first.max_query_len))
    grid = (num_rows + 1, triton.cdiv(first.max_query_len, at_once))
    before = proposer.computed.clone()  # the programs of a row write what others still read
    groups = list(zip(proposer.tables, first.slots, strict=True))
    for table, slots in groups or [(state.tokens, first.positions)]:  # all but the slots come out the same each time
        _begin[grid](
            first.rows, first.query_start, first.line_start, first.ids, first.positions, slots, first.seq_lens,
            first.line_at, first.line_rows, first.line_lengths, batch.next.seq_lens,
            state.tokens, state.num_computed, state.quiet, proposer.computed, before, table,
            state.tokens.stride(0), state.quiet.stride(0), proposer.computed.stride(0), before.stride(0),
            table.stride(0), num_rows, num_tokens, proposer.max_len, proposer.num_ids,
            AHEAD=proposer.ahead, BLOCK_SIZE=proposer.block_size, AT_ONCE=at_once, HAS_TABLE=bool(groups),
            num_warps=1 if at_once <= 32 else 4,
        )  # fmt: skip


def take_draft(
    state: RowState, proposer: DraftState, batch: DraftBatch, chosen: Chosen, draft: int, last: bool
) -> None:
    """`RowOps.take_draft`."""
    following = batch.next
    has_table = bool(proposer.tables)
    groups = list(zip(proposer.tables, following.slots, strict=True)) or [(state.tokens, following.positions)]
    for index, (table, slots) in enumerate(groups[:1] if last else groups):
        _take[(following.line_rows.shape[0],)](
            following.line_rows, *chosen, following.ids, following.positions, slots, following.seq_lens,
            following.line_lengths,
            state.tokens, state.num_computed, state.max_len, state.quiet, state.num_drafts, proposer.computed,
            proposer.most, table,
            state.tokens.stride(0), state.quiet.stride(0), proposer.computed.stride(0), proposer.most.stride(0),
            table.stride(0), proposer.max_len, proposer.num_ids, draft,
            AHEAD=proposer.ahead, LAST=int(last), AGAIN=int(index > 0), BLOCK_SIZE=proposer.block_size,
            HAS_TABLE=has_table, num_warps=1,
        )  # fmt: skip

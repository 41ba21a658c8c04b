"""Rows in Triton: one launch per KV group to gather and one to commit."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.core.contract.step import NO_TOKEN
from cadence.kernels.interface.row_ops import (
    FAILED,
    MOST_STOPS,
    NO_DRAFT,
    Chosen,
    DraftBatch,
    DraftState,
    KeptStates,
    RowState,
    StepBatch,
    Turns,
)
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.triton.common.launch import quick
from cadence.kernels.triton.rows.drafts import begin_drafts, store_padding, take_draft
from cadence.kernels.triton.rows.kept_states import keep_states, kept_states
from cadence.kernels.triton.rows.state_runs import copy_lines, find_draft_runs, find_state_runs, forget_drafts

_AT_ONCE = 256  # tokens of a run that one program gathers
_SEARCHED = 1024  # places of a row that are looked at together
_MOST_DRAFTS = 32


@quick
@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def _gather(
    rows_ptr, start_ptr, line_start_ptr, ids_ptr, positions_ptr, slots_ptr, lens_ptr,
    at_ptr, line_rows_ptr, lengths_ptr,
    tokens_ptr, computed_ptr, quiet_ptr, drafts_ptr, table_ptr,
    tokens_stride, scalar_stride, table_stride, num_rows, num_tokens,
    BLOCK_SIZE: tl.constexpr, AT_ONCE: tl.constexpr, HAS_TABLE: tl.constexpr,
):  # fmt: skip
    """A program per run and piece of it; those of the run after the last fill in the padding. Without a table,
    slots_ptr is that of positions: both are 0 in the padding."""
    run = tl.program_id(0)
    begin = tl.load(start_ptr + run)
    token = begin + tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    if run == num_rows:
        store_padding(ids_ptr, positions_ptr, slots_ptr, token, num_tokens)
    else:
        row = tl.load(rows_ptr + run).to(tl.int64)
        end = tl.load(start_ptr + run + 1)
        quiet = tl.load(quiet_ptr + row * scalar_stride)
        first = tl.load(computed_ptr + row * scalar_stride) - quiet
        line, line_end = tl.load(line_start_ptr + run), tl.load(line_start_ptr + run + 1)
        room = tl.maximum(line_end - line - 1, 0)
        num_real = end - begin - room + tl.minimum(tl.load(drafts_ptr + row * scalar_stride), room)
        inside = token < end
        real = token < begin + num_real
        position = tl.where(real, first + token - begin, 0)
        ids = tl.load(tokens_ptr + row * tokens_stride + position, mask=real, other=0)
        tl.store(ids_ptr + token, ids, mask=inside)
        tl.store(positions_ptr + token, position.to(tl.int64), mask=inside)
        if HAS_TABLE:
            block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE, mask=real, other=0).to(tl.int64)
            slot = block * BLOCK_SIZE + position % BLOCK_SIZE
            tl.store(slots_ptr + token, tl.where(real & (quiet == 0), slot, 0), mask=inside)
        if tl.program_id(1) == 0:
            length = first + end - begin
            tl.store(lens_ptr + run, length)
            for each in range(line, line_end):
                tl.store(at_ptr + each, (end - (line_end - each)).to(tl.int64))
                tl.store(line_rows_ptr + each, row.to(tl.int32))
                tl.store(lengths_ptr + each, tl.minimum(length + 1 - (line_end - each), first + num_real))


@quick
@triton.jit
def _commit(
    out_ptr, rows_ptr, lens_ptr, line_start_ptr, chosen_ptr, peaks_ptr,
    tokens_ptr, computed_ptr, min_ptr, max_ptr, quiet_ptr, drafts_ptr, stops_ptr, tokens_stride, scalar_stride,
    STOPS: tl.constexpr, NONE: tl.constexpr, BROKEN: tl.constexpr, NO_DRAFT: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    line, line_end = tl.load(line_start_ptr + run), tl.load(line_start_ptr + run + 1)
    was_quiet = tl.load(quiet_ptr + row * scalar_stride) != 0
    length = tl.load(lens_ptr + run)
    drafts = tl.load(drafts_ptr + row * scalar_stride)
    least = tl.load(min_ptr + row * scalar_stride)
    most = tl.load(max_ptr + row * scalar_stride)
    stops = tl.load(stops_ptr + row * STOPS + tl.arange(0, STOPS))
    first = length + tl.where(line < line_end, 1 - (line_end - line), 0)  # where the first token goes
    computed = tl.where(line < line_end, first - 1, length)
    going = was_quiet == 0
    ends = was_quiet
    for each in range(line, line_end):
        i = each - line
        peak = tl.load(peaks_ptr + each)
        failed = (peak != peak) | (tl.abs(peak) == float("inf"))
        token = tl.where(failed, 0, tl.load(chosen_ptr + each))
        place_ptr = tokens_ptr + row * tokens_stride + first + i
        kept = (i < drafts) & (tl.load(place_ptr, mask=going, other=-1) == token)
        tl.store(place_ptr, token, mask=going)
        taken = tl.where(failed, BROKEN, token)
        tl.store(out_ptr + each, tl.where(going, taken, tl.where((i > 0) & ((i > drafts) | was_quiet), NO_DRAFT, NONE)))
        stopped = (tl.sum((stops == token).to(tl.int32), 0) > 0) & (first + i + 1 >= least)
        ends = ends | (going & (failed | stopped | (first + i + 1 >= most)))
        computed += going.to(tl.int32)
        going = going & kept & (ends == 0)
    moves = was_quiet == 0
    tl.store(computed_ptr + row * scalar_stride, computed, mask=moves)
    tl.store(quiet_ptr + row * scalar_stride, ends.to(tl.int32), mask=moves)
    tl.store(drafts_ptr + row * scalar_stride, 0)


@quick
@triton.jit(do_not_specialize=["shortest"])
def _propose(
    rows_ptr, line_start_ptr, most_ptr, tokens_ptr, computed_ptr, max_ptr, quiet_ptr, drafts_ptr,
    tokens_stride, scalar_stride, most_stride, shortest,
    LONGEST: tl.constexpr, AT_ONCE: tl.constexpr, MOST: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    has_line = tl.load(line_start_ptr + run) < tl.load(line_start_ptr + run + 1)
    length = tl.load(computed_ptr + row * scalar_stride) + 1
    room = tl.load(max_ptr + row * scalar_stride) - 1 - length
    count = tl.minimum(tl.minimum(tl.load(most_ptr + row * most_stride), room), MOST)
    if (tl.load(quiet_ptr + row * scalar_stride) == 0) & has_line & (count > 0):
        known_ptr = tokens_ptr + row * tokens_stride
        best = tl.zeros([AT_ONCE], dtype=tl.int64)  # size of a match << 32 | its end
        for start in range(0, length - 1, AT_ONCE):
            end = start + 1 + tl.arange(0, AT_ONCE)
            same = end < length
            size = tl.zeros([AT_ONCE], dtype=tl.int64)
            for back in range(LONGEST):
                wanted = tl.load(known_ptr + length - 1 - back, mask=back < length, other=-1)
                same = same & (tl.load(known_ptr + end - 1 - back, mask=same & (end > back), other=-2) == wanted)
                size += same.to(tl.int64)
            best = tl.maximum(best, tl.where(size >= shortest, (size << 32) | end, 0))
        found = tl.max(best, 0)
        if found > 0:
            end = (found & 0xFFFFFFFF).to(tl.int32)
            draft = tl.arange(0, MOST)
            tokens = tl.load(known_ptr + end + draft % (length - end), mask=draft < count, other=0)
            tl.store(known_ptr + length + draft, tokens, mask=draft < count)
            tl.store(drafts_ptr + row * scalar_stride, count)


class TritonRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        num_rows, num_tokens = batch.rows.shape[0], batch.ids.shape[0]
        at_once = 1 if batch.max_query_len == 1 else _AT_ONCE
        runs = num_rows if batch.one_each else num_rows + 1  # where each row has one token, none is padding
        grid = (runs, triton.cdiv(batch.max_query_len, at_once))
        each = zip(tables, batch.slots, strict=True) if tables else [(state.tokens, batch.positions)]
        for table, slots in each:  # all but the slots come out the same each time
            _gather[grid](
                batch.rows, batch.query_start, batch.line_start, batch.ids, batch.positions, slots, batch.seq_lens,
                batch.line_at, batch.line_rows, batch.line_lengths,
                state.tokens, state.num_computed, state.quiet, state.num_drafts, table,
                state.tokens.stride(0), state.quiet.stride(0), table.stride(0), num_rows, num_tokens,
                BLOCK_SIZE=block_size, AT_ONCE=at_once, HAS_TABLE=bool(tables), num_warps=1 if at_once == 1 else 4,
            )  # fmt: skip

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        _commit[(batch.rows.shape[0],)](
            out, batch.rows, batch.seq_lens, batch.line_start, tokens, peaks,
            state.tokens, state.num_computed, state.min_len, state.max_len, state.quiet, state.num_drafts, state.stops,
            state.tokens.stride(0), state.quiet.stride(0),
            STOPS=MOST_STOPS, NONE=NO_TOKEN, BROKEN=FAILED, NO_DRAFT=NO_DRAFT, num_warps=1,
        )  # fmt: skip

    def turn(self, state: RowState, batch: StepBatch, out: torch.Tensor, turns: Turns) -> None:
        ReferenceRowOps().turn(state, batch, out, turns)  # in the interpreter alone: no GPU's memory is the host's

    def find_state_runs(self, state: RowState, batch: StepBatch, taken: torch.Tensor, runs: StateRuns) -> None:
        find_state_runs(state, batch, taken, runs)

    def find_draft_runs(
        self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor, runs: StateRuns, following: StateRuns
    ) -> None:
        find_draft_runs(proposer, batch, taken, runs, following)

    def forget_drafts(self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor) -> None:
        forget_drafts(proposer, batch, taken)

    def copy_lines(self, source: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> None:
        copy_lines(source, target, lines)

    def propose_ngram(self, state: RowState, batch: StepBatch, most: torch.Tensor, shortest: int, longest: int) -> None:
        _propose[(batch.rows.shape[0],)](
            batch.rows, batch.line_start, most,
            state.tokens, state.num_computed, state.max_len, state.quiet, state.num_drafts,
            state.tokens.stride(0), state.quiet.stride(0), most.stride(0), shortest,
            LONGEST=longest, AT_ONCE=_SEARCHED, MOST=_MOST_DRAFTS, num_warps=4,
        )  # fmt: skip

    def drafts(self, state: RowState, batch: StepBatch, most: int) -> torch.Tensor:
        return ReferenceRowOps().drafts(state, batch, most)  # between stages alone, where its launches are hidden

    def begin_drafts(self, state: RowState, proposer: DraftState, batch: DraftBatch) -> None:
        begin_drafts(state, proposer, batch)

    def take_draft(
        self, state: RowState, proposer: DraftState, batch: DraftBatch, chosen: Chosen, draft: int, last: bool
    ) -> None:
        take_draft(state, proposer, batch, chosen, draft, last)

    def keep_states(self, kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
        keep_states(kept, batch, states)

    def kept_states(self, kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
        return kept_states(kept, batch)

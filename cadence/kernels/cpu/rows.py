"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

from typing import Any

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import NO_TENSOR, CpuLibrary
from cadence.kernels.interface.row_ops import (
    MOST_STOPS,
    Chosen,
    DraftBatch,
    DraftState,
    KeptStates,
    RowState,
    StepBatch,
    Turns,
)
from cadence.kernels.interface.state_ops import StateRuns


class CpuRowOps:
    def __init__(self, calls: Calls, library: CpuLibrary) -> None:
        self._calls = calls
        self._c = library

    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        shared = state_words(state) | {
            "rows": batch.rows, "query_start": batch.query_start, "line_start": batch.line_start,
            "positions": batch.positions, "num_rows": batch.rows.shape[0], "num_tokens": batch.ids.shape[0],
        }  # fmt: skip
        self._c.rows_gather(
            **shared, ids=batch.ids, seq_lens=batch.seq_lens, line_at=batch.line_at, line_rows=batch.line_rows,
            line_lengths=batch.line_lengths,
        )  # fmt: skip
        for table, slots in zip(tables, batch.slots, strict=True):
            self._c.rows_slots(**shared, slots=slots, table=table, table_stride=table.stride(0), block_size=block_size)

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        self._c.rows_commit(
            **state_words(state), rows=batch.rows, seq_lens=batch.seq_lens, line_start=batch.line_start, chosen=tokens,
            peaks=peaks, out=out, num_rows=batch.rows.shape[0],
        )  # fmt: skip

    def turn(self, state: RowState, batch: StepBatch, out: torch.Tensor, turns: Turns) -> None:
        self._c.rows_turn(
            **state_words(state), rows=batch.rows, out=out, log=turns.log, control=turns.control,
            log_stride=turns.log.stride(0), num_rows=batch.rows.shape[0], num_lines=out.shape[0],
        )  # fmt: skip
        self._calls.repeat_while(turns.control)

    def find_state_runs(self, state: RowState, batch: StepBatch, taken: torch.Tensor, runs: StateRuns) -> None:
        self._c.rows_find_state_runs(
            **state_words(state), rows=batch.rows, query_start=batch.query_start, line_start=batch.line_start,
            taken=taken, lines=runs.rows, replayed=runs.replayed, certain=runs.certain, kept=runs.kept,
            taken_stride=taken.stride(0), last=taken.shape[0] - 1, num_rows=batch.rows.shape[0],
        )  # fmt: skip

    def find_draft_runs(
        self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor, runs: StateRuns, following: StateRuns
    ) -> None:
        shared = {
            "computed": proposer.computed, "taken": taken, "computed_stride": proposer.computed.stride(0),
            "taken_stride": taken.stride(0), "last": taken.shape[0] - 1,
        }  # fmt: skip
        for of_batch, rows, tries in ((runs, batch.first.rows, 0), (following, batch.next.line_rows, 1)):
            self._c.rows_find_draft_runs(
                **shared, rows=rows, lines=of_batch.rows, replayed=of_batch.replayed, certain=of_batch.certain,
                kept=of_batch.kept, num_rows=rows.shape[0], tries=tries,
            )  # fmt: skip

    def forget_drafts(self, proposer: DraftState, batch: DraftBatch, taken: torch.Tensor) -> None:
        self._c.rows_forget_drafts(
            computed=proposer.computed, taken=taken, rows=batch.first.rows, last=taken.shape[0] - 1,
            computed_stride=proposer.computed.stride(0), taken_stride=taken.stride(0),
            num_rows=batch.first.rows.shape[0],
        )  # fmt: skip

    def copy_lines(self, source: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> None:
        size = source.element_size()
        self._c.rows_copy_lines(
            target=target, source=source, lines=lines, line_bytes=source[0, 0].numel() * size,
            source_layer=source.stride(0) * size, source_line=source.stride(1) * size,
            target_layer=target.stride(0) * size, target_line=target.stride(1) * size, num_lines=lines.shape[0],
            num_layers=source.shape[0],
        )  # fmt: skip

    def propose_ngram(self, state: RowState, batch: StepBatch, most: torch.Tensor, shortest: int, longest: int) -> None:
        self._c.rows_propose(
            **state_words(state), rows=batch.rows, line_start=batch.line_start, most=most, most_stride=most.stride(0),
            num_rows=batch.rows.shape[0], shortest=shortest, longest=longest,
        )  # fmt: skip

    def drafts(self, state: RowState, batch: StepBatch, most: int) -> torch.Tensor:
        out = self._calls.empty((batch.rows.shape[0], 1 + most), torch.int32)
        self._c.rows_drafts(
            **state_words(state), rows=batch.rows, out=out, num_rows=batch.rows.shape[0],
            num_tokens=state.tokens.shape[1], most=most,
        )  # fmt: skip
        return out

    def begin_drafts(self, state: RowState, proposer: DraftState, batch: DraftBatch) -> None:
        first = batch.first
        num_real = self._calls.empty(first.rows.shape, torch.int32)
        self._c.rows_begin_drafts(
            **_shared_words(state, proposer), rows=first.rows, query_start=first.query_start,
            line_start=first.line_start, ids=first.ids, positions=first.positions, seq_lens=first.seq_lens,
            line_at=first.line_at, line_rows=first.line_rows, line_lengths=first.line_lengths,
            line_seq_lens=batch.next.seq_lens, num_real=num_real, num_rows=first.rows.shape[0],
            num_tokens=first.ids.shape[0], max_len=proposer.max_len,
        )  # fmt: skip
        self._find_slots(first, proposer, num_real)

    def take_draft(
        self, state: RowState, proposer: DraftState, batch: DraftBatch, chosen: Chosen, draft: int, last: bool
    ) -> None:
        following, (tokens, peaks) = batch.next, chosen
        num_real = self._calls.empty(following.line_rows.shape, torch.int32)
        self._c.rows_take_draft(
            **_shared_words(state, proposer), max_len=state.max_len, num_drafts=state.num_drafts, most=proposer.most,
            rows=following.line_rows, chosen=tokens, peaks=peaks, ids=NO_TENSOR if last else following.ids,
            positions=following.positions, seq_lens=following.seq_lens, line_lengths=following.line_lengths,
            num_real=num_real, most_stride=proposer.most.stride(0), num_rows=following.line_rows.shape[0], draft=draft,
            longest=proposer.max_len,
        )  # fmt: skip
        if not last:
            self._find_slots(following, proposer, num_real)

    def keep_states(self, kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
        for ring, each in zip(kept.states, states, strict=True):
            if each.dtype != ring.dtype or each.stride(1) != 1 or not ring.is_contiguous():
                raise ValueError(f"states {list(each.shape)} of {each.dtype} are not kept as {ring.dtype}")
            self._c.rows_keep_states(
                kept=ring, x=each, rows=batch.rows, positions=batch.positions, num_rows=batch.num_single,
                room=kept.room, row_bytes=ring.shape[2] * ring.element_size(),
                x_stride=each.stride(0) * each.element_size(),
            )  # fmt: skip

    def kept_states(self, kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
        states = []
        for ring in kept.states:
            out = self._calls.zeros((batch.ids.shape[0], ring.shape[2]), ring.dtype)
            self._c.rows_kept_states(
                out=out, kept=ring, rows=batch.rows, query_start=batch.query_start, positions=batch.positions,
                num_rows=batch.rows.shape[0], room=kept.room, row_bytes=ring.shape[2] * ring.element_size(),
            )  # fmt: skip
            states.append(out)
        return tuple(states)

    def _find_slots(self, batch: StepBatch, proposer: DraftState, num_real: torch.Tensor) -> None:
        """num_real [R] int32: leading tokens of each run that are no padding"""
        for table, slots in zip(proposer.tables, batch.slots, strict=True):
            self._c.rows_draft_slots(
                rows=batch.rows, query_start=batch.query_start, num_real=num_real, table=table,
                positions=batch.positions, slots=slots, table_stride=table.stride(0), block_size=proposer.block_size,
                num_rows=batch.rows.shape[0], num_tokens=batch.ids.shape[0],
            )  # fmt: skip


def _shared_words(state: RowState, proposer: DraftState) -> dict[str, Any]:
    return {
        "tokens": state.tokens, "num_computed": state.num_computed, "quiet": state.quiet, "computed": proposer.computed,
        "token_stride": state.tokens.stride(0), "column_stride": state.quiet.stride(0),
        "computed_stride": proposer.computed.stride(0), "ahead": proposer.ahead, "num_ids": proposer.num_ids,
    }  # fmt: skip


def state_words(state: RowState) -> dict[str, Any]:
    return {
        "tokens": state.tokens, "num_computed": state.num_computed, "min_len": state.min_len, "max_len": state.max_len,
        "quiet": state.quiet, "num_drafts": state.num_drafts, "stops": state.stops, "num_stops": MOST_STOPS,
        "token_stride": state.tokens.stride(0), "column_stride": state.quiet.stride(0),
    }  # fmt: skip

"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import (
    MOST_STOPS,
    DraftBatch,
    DraftState,
    KeptStates,
    RowState,
    StepBatch,
    Turns,
)


class CpuRowOps:
    def __init__(self, calls: Calls, library: CpuLibrary) -> None:
        self._calls = calls
        self._c = library

    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        shared = {
            **state_words(state),
            "rows": batch.rows.data_ptr(),
            "query_start": batch.query_start.data_ptr(),
            "line_start": batch.line_start.data_ptr(),
            "positions": batch.positions.data_ptr(),
            "num_rows": batch.rows.shape[0],
            "num_tokens": batch.ids.shape[0],
        }
        self._c.rows_gather(
            **shared,
            ids=batch.ids.data_ptr(),
            seq_lens=batch.seq_lens.data_ptr(),
            line_at=batch.line_at.data_ptr(),
            line_rows=batch.line_rows.data_ptr(),
            line_lengths=batch.line_lengths.data_ptr(),
        )
        for table, slots in zip(tables, batch.slots, strict=True):
            self._c.rows_slots(
                **shared,
                slots=slots.data_ptr(),
                table=table.data_ptr(),
                table_stride=table.stride(0),
                block_size=block_size,
            )

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        self._c.rows_commit(
            **state_words(state),
            rows=batch.rows.data_ptr(),
            seq_lens=batch.seq_lens.data_ptr(),
            line_start=batch.line_start.data_ptr(),
            chosen=tokens.data_ptr(),
            peaks=peaks.data_ptr(),
            out=out.data_ptr(),
            num_rows=batch.rows.shape[0],
        )

    def turn(self, state: RowState, batch: StepBatch, out: torch.Tensor, turns: Turns) -> None:
        self._c.rows_turn(
            **state_words(state),
            rows=batch.rows.data_ptr(),
            out=out.data_ptr(),
            log=turns.log.data_ptr(),
            control=turns.control.data_ptr(),
            log_stride=turns.log.stride(0),
            num_rows=batch.rows.shape[0],
            num_lines=out.shape[0],
        )
        self._calls.repeat_while(turns.control)

    def propose_ngram(self, state: RowState, batch: StepBatch, most: torch.Tensor, shortest: int, longest: int) -> None:
        self._c.rows_propose(
            **state_words(state),
            rows=batch.rows.data_ptr(),
            line_start=batch.line_start.data_ptr(),
            most=most.data_ptr(),
            most_stride=most.stride(0),
            num_rows=batch.rows.shape[0],
            shortest=shortest,
            longest=longest,
        )

    def drafts(self, state: RowState, batch: StepBatch, most: int) -> torch.Tensor:
        out = self._calls.empty((batch.rows.shape[0], 1 + most), torch.int32)
        self._c.rows_drafts(
            **state_words(state),
            rows=batch.rows.data_ptr(),
            out=out.data_ptr(),
            num_rows=batch.rows.shape[0],
            num_tokens=state.tokens.shape[1],
            most=most,
        )
        return out

    def begin_drafts(self, state: RowState, drafter: DraftState, batch: DraftBatch) -> None:
        first = batch.first
        num_real = self._calls.empty(first.rows.shape, torch.int32)
        self._c.rows_begin_drafts(
            **_shared_words(state, drafter),
            rows=first.rows.data_ptr(),
            query_start=first.query_start.data_ptr(),
            line_start=first.line_start.data_ptr(),
            ids=first.ids.data_ptr(),
            positions=first.positions.data_ptr(),
            seq_lens=first.seq_lens.data_ptr(),
            line_at=first.line_at.data_ptr(),
            line_rows=first.line_rows.data_ptr(),
            line_lengths=first.line_lengths.data_ptr(),
            line_seq_lens=batch.next.seq_lens.data_ptr(),
            num_real=num_real.data_ptr(),
            num_rows=first.rows.shape[0],
            num_tokens=first.ids.shape[0],
            max_len=drafter.max_len,
        )
        self._find_slots(first, drafter, num_real)

    def take_draft(
        self,
        state: RowState,
        drafter: DraftState,
        batch: DraftBatch,
        chosen: tuple[torch.Tensor, torch.Tensor],
        draft: int,
        last: bool,
    ) -> None:
        following, (tokens, peaks) = batch.next, chosen
        num_real = self._calls.empty(following.line_rows.shape, torch.int32)
        self._c.rows_take_draft(
            **_shared_words(state, drafter),
            max_len=state.max_len.data_ptr(),
            num_drafts=state.num_drafts.data_ptr(),
            most=drafter.most.data_ptr(),
            rows=following.line_rows.data_ptr(),
            chosen=tokens.data_ptr(),
            peaks=peaks.data_ptr(),
            ids=0 if last else following.ids.data_ptr(),
            positions=following.positions.data_ptr(),
            seq_lens=following.seq_lens.data_ptr(),
            line_lengths=following.line_lengths.data_ptr(),
            num_real=num_real.data_ptr(),
            most_stride=drafter.most.stride(0),
            num_rows=following.line_rows.shape[0],
            draft=draft,
            longest=drafter.max_len,
        )
        if not last:
            self._find_slots(following, drafter, num_real)

    def keep_states(self, kept: KeptStates, batch: StepBatch, states: tuple[torch.Tensor, ...]) -> None:
        for ring, each in zip(kept.states, states, strict=True):
            if each.dtype != ring.dtype or each.stride(1) != 1 or not ring.is_contiguous():
                raise ValueError(f"states {list(each.shape)} of {each.dtype} are not kept as {ring.dtype}")
            self._c.rows_keep_states(
                kept=ring.data_ptr(),
                x=each.data_ptr(),
                rows=batch.rows.data_ptr(),
                positions=batch.positions.data_ptr(),
                num_rows=batch.num_single,
                room=kept.room,
                row_bytes=ring.shape[2] * ring.element_size(),
                x_stride=each.stride(0) * each.element_size(),
            )

    def kept_states(self, kept: KeptStates, batch: StepBatch) -> tuple[torch.Tensor, ...]:
        states = []
        for ring in kept.states:
            out = self._calls.zeros((batch.ids.shape[0], ring.shape[2]), ring.dtype)
            self._c.rows_kept_states(
                out=out.data_ptr(),
                kept=ring.data_ptr(),
                rows=batch.rows.data_ptr(),
                query_start=batch.query_start.data_ptr(),
                positions=batch.positions.data_ptr(),
                num_rows=batch.rows.shape[0],
                room=kept.room,
                row_bytes=ring.shape[2] * ring.element_size(),
            )
            states.append(out)
        return tuple(states)

    def _find_slots(self, batch: StepBatch, drafter: DraftState, num_real: torch.Tensor) -> None:
        """num_real [R] int32: leading tokens of each run that are no padding"""
        for table, slots in zip(drafter.tables, batch.slots, strict=True):
            self._c.rows_draft_slots(
                rows=batch.rows.data_ptr(),
                query_start=batch.query_start.data_ptr(),
                num_real=num_real.data_ptr(),
                table=table.data_ptr(),
                positions=batch.positions.data_ptr(),
                slots=slots.data_ptr(),
                table_stride=table.stride(0),
                block_size=drafter.block_size,
                num_rows=batch.rows.shape[0],
                num_tokens=batch.ids.shape[0],
            )


def _shared_words(state: RowState, drafter: DraftState) -> dict[str, int]:
    return {
        "tokens": state.tokens.data_ptr(),
        "num_computed": state.num_computed.data_ptr(),
        "quiet": state.quiet.data_ptr(),
        "computed": drafter.computed.data_ptr(),
        "token_stride": state.tokens.stride(0),
        "column_stride": state.quiet.stride(0),
        "computed_stride": drafter.computed.stride(0),
        "ahead": drafter.ahead,
        "num_ids": drafter.num_ids,
    }


def state_words(state: RowState) -> dict[str, int]:
    return {
        "tokens": state.tokens.data_ptr(),
        "num_computed": state.num_computed.data_ptr(),
        "min_len": state.min_len.data_ptr(),
        "max_len": state.max_len.data_ptr(),
        "quiet": state.quiet.data_ptr(),
        "num_drafts": state.num_drafts.data_ptr(),
        "stops": state.stops.data_ptr(),
        "token_stride": state.tokens.stride(0),
        "column_stride": state.quiet.stride(0),
        "num_stops": MOST_STOPS,
    }

"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import MOST_STOPS, RowState, StepBatch, Turns


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

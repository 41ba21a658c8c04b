"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import MOST_STOPS, DecodeInputs, RowState, Sampled


class CpuRowOps:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._c = CpuLibrary(calls)

    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        words = {
            **_state_words(state),
            "rows": inputs.rows.data_ptr(),
            "ids": inputs.ids.data_ptr(),
            "positions": inputs.positions.data_ptr(),
            "seq_lens": inputs.seq_lens.data_ptr(),
            "count": inputs.rows.shape[0],
        }
        self._c.rows_gather(**words)
        for table, slots in zip(tables, inputs.slots, strict=True):
            self._c.rows_slots(
                **words,
                slots=slots.data_ptr(),
                table=table.data_ptr(),
                table_stride=table.stride(0),
                block_size=block_size,
            )

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        self._c.rows_commit(
            **_state_words(state),
            rows=sampled.rows.data_ptr(),
            lengths=sampled.lengths.data_ptr(),
            sampled=sampled.tokens.data_ptr(),
            peaks=sampled.peaks.data_ptr(),
            out=out.data_ptr(),
            out_stride=out.stride(0),
            count=out.shape[1],
            passes=self._calls.passes_at,
        )


def _state_words(state: RowState) -> dict[str, int]:
    return {
        "tokens": state.tokens.data_ptr(),
        "num_computed": state.num_computed.data_ptr(),
        "min_len": state.min_len.data_ptr(),
        "max_len": state.max_len.data_ptr(),
        "quiet": state.quiet.data_ptr(),
        "stops": state.stops.data_ptr(),
        "token_stride": state.tokens.stride(0),
        "column_stride": state.quiet.stride(0),
        "num_stops": MOST_STOPS,
    }

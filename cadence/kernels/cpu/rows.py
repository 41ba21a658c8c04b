"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

import torch

from cadence.device.calls import Calls
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.row_ops import MOST_STOPS, DecodeInputs, RowState, Sampled


class CpuRowOps:
    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._c = CpuLibrary(calls)

    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        count = inputs.rows.shape[0]
        fields = (inputs.rows, inputs.ids, inputs.positions, inputs.seq_lens)
        words = (*_state_words(state), *[tensor.data_ptr() for tensor in fields])
        self._calls.call(self._c.rows_gather, *words, count)
        for table, slots in zip(tables, inputs.slots, strict=True):
            at = (slots.data_ptr(), table.data_ptr())
            self._calls.call(self._c.rows_slots, *words, *at, table.stride(0), block_size, count)

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        fields = (sampled.rows, sampled.lengths, sampled.tokens, sampled.peaks, out)
        at = [tensor.data_ptr() for tensor in fields]
        where = (out.stride(0), out.shape[1], self._calls.passes_at)
        self._calls.call(self._c.rows_commit, *_state_words(state), *at, *where)


def _state_words(state: RowState) -> tuple[int, ...]:
    """The fields of the library's RowState, in order."""
    tensors = (state.tokens, state.num_computed, state.min_len, state.max_len, state.quiet, state.stops)
    return *[tensor.data_ptr() for tensor in tensors], state.tokens.stride(0), state.quiet.stride(0), MOST_STOPS

"""Rows in C: with one row, a handful of torch calls would cost more than the work."""

from __future__ import annotations

from ctypes import Structure, byref, c_int64, c_void_p

import torch

from cadence.kernels.cpu.build import load_library
from cadence.kernels.row_ops import MOST_STOPS, DecodeInputs, RowState, Sampled


class _State(Structure):
    _fields_ = (
        *[(name, c_void_p) for name in ("tokens", "num_computed", "min_len", "max_len", "quiet", "stops")],
        *[(name, c_int64) for name in ("token_stride", "column_stride", "num_stops")],
    )

    @classmethod
    def of(cls, state: RowState) -> _State:
        tensors = (state.tokens, state.num_computed, state.min_len, state.max_len, state.quiet, state.stops)
        strides = (state.tokens.stride(0), state.quiet.stride(0))
        return cls(*[tensor.data_ptr() for tensor in tensors], *strides, MOST_STOPS)


class _Inputs(Structure):
    _fields_ = tuple((name, c_void_p) for name in ("rows", "ids", "positions", "seq_lens"))


_SIGNATURES: dict[str, list[type]] = {
    "cadence_rows_gather": [c_void_p, c_void_p, c_int64],
    "cadence_rows_slots": [c_void_p] * 4 + [c_int64] * 3,
    "cadence_rows_commit": [c_void_p] * 6 + [c_int64],
}


class CpuRowOps:
    def __init__(self) -> None:
        library = load_library()
        for name, arguments in _SIGNATURES.items():
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, None
        self._c = library

    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        rows, count = _State.of(state), inputs.rows.shape[0]
        fields = (inputs.rows, inputs.ids, inputs.positions, inputs.seq_lens)
        at = _Inputs(*[tensor.data_ptr() for tensor in fields])
        self._c.cadence_rows_gather(byref(rows), byref(at), count)
        for table, slots in zip(tables, inputs.slots, strict=True):
            self._c.cadence_rows_slots(
                byref(rows), byref(at), slots.data_ptr(), table.data_ptr(), table.stride(0), block_size, count
            )

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        fields = (sampled.rows, sampled.lengths, sampled.tokens, sampled.peaks, out)
        at = [tensor.data_ptr() for tensor in fields]
        self._c.cadence_rows_commit(byref(_State.of(state)), *at, out.shape[0])

"""Rows in Triton: one program per row, one launch per KV group to gather and one to commit."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.core.step import NO_TOKEN
from cadence.kernels.interface.row_ops import FAILED, MOST_STOPS, DecodeInputs, RowState, Sampled
from cadence.kernels.triton.launch import quick


@quick
@triton.jit
def _gather(
    rows_ptr, ids_ptr, positions_ptr, lens_ptr, slots_ptr,
    tokens_ptr, computed_ptr, quiet_ptr, table_ptr, tokens_stride, scalar_stride, table_stride,
    BLOCK_SIZE: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    row = tl.load(rows_ptr + line).to(tl.int64)
    quiet = tl.load(quiet_ptr + row * scalar_stride)
    position = tl.load(computed_ptr + row * scalar_stride) - quiet
    tl.store(ids_ptr + line, tl.load(tokens_ptr + row * tokens_stride + position))
    tl.store(positions_ptr + line, position.to(tl.int64))
    tl.store(lens_ptr + line, position + 1)
    block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE).to(tl.int64)
    slot = block * BLOCK_SIZE + position % BLOCK_SIZE
    tl.store(slots_ptr + line, tl.where(quiet != 0, 0, slot))


@quick
@triton.jit
def _commit(
    out_ptr, rows_ptr, lengths_ptr, chosen_ptr, peaks_ptr,
    tokens_ptr, computed_ptr, min_ptr, max_ptr, quiet_ptr, stops_ptr, tokens_stride, scalar_stride,
    STOPS: tl.constexpr, NONE: tl.constexpr, BROKEN: tl.constexpr,
):  # fmt: skip
    line = tl.program_id(0)
    row = tl.load(rows_ptr + line).to(tl.int64)
    was_quiet = tl.load(quiet_ptr + row * scalar_stride) != 0
    length = tl.load(lengths_ptr + line)
    peak = tl.load(peaks_ptr + line)
    failed = (peak != peak) | (tl.abs(peak) == float("inf"))
    token = tl.where(failed, 0, tl.load(chosen_ptr + line))
    stops = tl.load(stops_ptr + row * STOPS + tl.arange(0, STOPS))
    late = length + 1 >= tl.load(min_ptr + row * scalar_stride)
    full = length + 1 >= tl.load(max_ptr + row * scalar_stride)
    stopped = (tl.sum((stops == token).to(tl.int32), 0) > 0) & late
    ends = failed | stopped | full
    tl.store(tokens_ptr + row * tokens_stride + length, token, mask=was_quiet == 0)
    tl.store(computed_ptr + row * scalar_stride, length, mask=was_quiet == 0)
    tl.store(quiet_ptr + row * scalar_stride, ends.to(tl.int32), mask=was_quiet == 0)
    tl.store(out_ptr + line, tl.where(was_quiet, NONE, tl.where(failed, BROKEN, token)))


class TritonRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, inputs: DecodeInputs) -> None:
        for table, slots in zip(tables, inputs.slots, strict=True):  # ids and positions come out the same each time
            _gather[(inputs.rows.shape[0],)](
                inputs.rows, inputs.ids, inputs.positions, inputs.seq_lens, slots,
                state.tokens, state.num_computed, state.quiet, table,
                state.tokens.stride(0), state.quiet.stride(0), table.stride(0),
                BLOCK_SIZE=block_size, num_warps=1,
            )  # fmt: skip

    def commit(self, state: RowState, sampled: Sampled, out: torch.Tensor) -> None:
        _commit[(sampled.rows.shape[0],)](
            out, sampled.rows, sampled.lengths, sampled.tokens, sampled.peaks,
            state.tokens, state.num_computed, state.min_len, state.max_len, state.quiet, state.stops,
            state.tokens.stride(0), state.quiet.stride(0),
            STOPS=MOST_STOPS, NONE=NO_TOKEN, BROKEN=FAILED, num_warps=1,
        )  # fmt: skip

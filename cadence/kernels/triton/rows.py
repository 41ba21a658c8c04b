"""Rows in Triton: one launch per KV group to gather and one to commit."""

# ruff: noqa: N803 - capitals mark compile-time constants
from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.core.step import NO_TOKEN
from cadence.kernels.interface.row_ops import FAILED, MOST_STOPS, RowState, StepBatch
from cadence.kernels.triton.launch import quick

_AT_ONCE = 256  # tokens of a run that one program gathers


@quick
@triton.jit(do_not_specialize=["num_rows", "num_tokens"])
def _gather(
    rows_ptr, start_ptr, line_start_ptr, ids_ptr, positions_ptr, slots_ptr, lens_ptr,
    at_ptr, line_rows_ptr, lengths_ptr,
    tokens_ptr, computed_ptr, quiet_ptr, table_ptr, tokens_stride, scalar_stride, table_stride, num_rows, num_tokens,
    BLOCK_SIZE: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """A program per run and piece of it; those of the run behind the last fill in the padding."""
    run = tl.program_id(0)
    begin = tl.load(start_ptr + run)
    token = begin + tl.program_id(1) * AT_ONCE + tl.arange(0, AT_ONCE)
    if run == num_rows:
        padding = token < num_tokens
        tl.store(ids_ptr + token, tl.zeros_like(token), mask=padding)
        tl.store(positions_ptr + token, tl.zeros_like(token).to(tl.int64), mask=padding)
        tl.store(slots_ptr + token, tl.zeros_like(token).to(tl.int64), mask=padding)
    else:
        row = tl.load(rows_ptr + run).to(tl.int64)
        end = tl.load(start_ptr + run + 1)
        quiet = tl.load(quiet_ptr + row * scalar_stride)
        first = tl.load(computed_ptr + row * scalar_stride) - quiet
        position = first + token - begin
        real = token < end
        tl.store(ids_ptr + token, tl.load(tokens_ptr + row * tokens_stride + position, mask=real), mask=real)
        tl.store(positions_ptr + token, position.to(tl.int64), mask=real)
        block = tl.load(table_ptr + row * table_stride + position // BLOCK_SIZE, mask=real).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        tl.store(slots_ptr + token, tl.where(quiet != 0, 0, slot), mask=real)
        if tl.program_id(1) == 0:
            length = first + end - begin
            tl.store(lens_ptr + run, length)
            line_end = tl.load(line_start_ptr + run + 1)
            for line in range(tl.load(line_start_ptr + run), line_end):
                tl.store(at_ptr + line, (end - (line_end - line)).to(tl.int64))
                tl.store(line_rows_ptr + line, row.to(tl.int32))
                tl.store(lengths_ptr + line, length + 1 - (line_end - line))


@quick
@triton.jit
def _commit(
    out_ptr, rows_ptr, lens_ptr, line_start_ptr, chosen_ptr, peaks_ptr,
    tokens_ptr, computed_ptr, min_ptr, max_ptr, quiet_ptr, stops_ptr, tokens_stride, scalar_stride,
    STOPS: tl.constexpr, NONE: tl.constexpr, BROKEN: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    line = tl.load(line_start_ptr + run)
    has_line = line < tl.load(line_start_ptr + run + 1)
    was_quiet = tl.load(quiet_ptr + row * scalar_stride) != 0
    length = tl.load(lens_ptr + run)
    peak = tl.load(peaks_ptr + line, mask=has_line, other=0.0)
    failed = (peak != peak) | (tl.abs(peak) == float("inf"))
    token = tl.where(failed, 0, tl.load(chosen_ptr + line, mask=has_line, other=0))
    stops = tl.load(stops_ptr + row * STOPS + tl.arange(0, STOPS))
    late = length + 1 >= tl.load(min_ptr + row * scalar_stride)
    full = length + 1 >= tl.load(max_ptr + row * scalar_stride)
    stopped = (tl.sum((stops == token).to(tl.int32), 0) > 0) & late
    ends = failed | stopped | full
    moves = was_quiet == 0
    tl.store(computed_ptr + row * scalar_stride, length, mask=moves)
    tl.store(tokens_ptr + row * tokens_stride + length, token, mask=moves & has_line)
    tl.store(quiet_ptr + row * scalar_stride, ends.to(tl.int32), mask=moves & has_line)
    tl.store(out_ptr + line, tl.where(was_quiet, NONE, tl.where(failed, BROKEN, token)), mask=has_line)


class TritonRowOps:
    def gather(self, state: RowState, tables: tuple[torch.Tensor, ...], block_size: int, batch: StepBatch) -> None:
        num_rows, num_tokens = batch.rows.shape[0], batch.ids.shape[0]
        at_once = 1 if batch.max_query_len == 1 else _AT_ONCE
        runs = num_rows if batch.one_each else num_rows + 1  # where each row has one token, none is padding
        grid = (runs, triton.cdiv(batch.max_query_len, at_once))
        for table, slots in zip(tables, batch.slots, strict=True):  # all but the slots come out the same each time
            _gather[grid](
                batch.rows, batch.query_start, batch.line_start, batch.ids, batch.positions, slots, batch.seq_lens,
                batch.line_at, batch.line_rows, batch.line_lengths,
                state.tokens, state.num_computed, state.quiet, table,
                state.tokens.stride(0), state.quiet.stride(0), table.stride(0), num_rows, num_tokens,
                BLOCK_SIZE=block_size, AT_ONCE=at_once, num_warps=1 if at_once == 1 else 4,
            )  # fmt: skip

    def commit(
        self, state: RowState, batch: StepBatch, tokens: torch.Tensor, peaks: torch.Tensor, out: torch.Tensor
    ) -> None:
        _commit[(batch.rows.shape[0],)](
            out, batch.rows, batch.seq_lens, batch.line_start, tokens, peaks,
            state.tokens, state.num_computed, state.min_len, state.max_len, state.quiet, state.stops,
            state.tokens.stride(0), state.quiet.stride(0),
            STOPS=MOST_STOPS, NONE=NO_TOKEN, BROKEN=FAILED, num_warps=1,
        )  # fmt: skip

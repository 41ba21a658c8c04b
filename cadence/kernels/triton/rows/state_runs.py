"""What is to become of rows' states in a forward: one launch, a program per run; and copies of some."""

# ruff: noqa: N803 - capitals mark compile-time constants

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.row_ops import DraftBatch, DraftState, RowState, StepBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.triton.common.launch import quick

_COPIED = 4096  # bytes of a line that one program copies


@quick
@triton.jit(do_not_specialize=["last"])
def _find(
    rows_ptr, start_ptr, line_start_ptr, computed_ptr, quiet_ptr, drafts_ptr, taken_ptr,
    lines_ptr, replayed_ptr, certain_ptr, kept_ptr, scalar_stride, taken_stride, last,
):  # fmt: skip
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    line = tl.minimum(row, last)
    room = tl.maximum(tl.load(line_start_ptr + run + 1) - tl.load(line_start_ptr + run) - 1, 0)
    certain = tl.load(start_ptr + run + 1) - tl.load(start_ptr + run) - room
    computed = tl.load(computed_ptr + row * scalar_stride)
    taken = tl.load(taken_ptr + line * taken_stride)
    moves = (tl.load(quiet_ptr + row * scalar_stride) == 0) & (line < last)
    kept = tl.minimum(tl.load(drafts_ptr + row * scalar_stride), room)
    tl.store(lines_ptr + run, line.to(tl.int32))
    tl.store(replayed_ptr + run, tl.where(moves, tl.maximum(computed - taken, 0), 0))
    tl.store(certain_ptr + run, tl.where(moves, certain, 0))
    tl.store(kept_ptr + run, tl.where(moves, kept, 0))
    tl.store(taken_ptr + line * taken_stride, computed + certain, mask=moves)


def find_state_runs(state: RowState, batch: StepBatch, taken: torch.Tensor, runs: StateRuns) -> None:
    _find[(batch.rows.shape[0],)](
        batch.rows, batch.query_start, batch.line_start, state.num_computed, state.quiet, state.num_drafts, taken,
        runs.rows, runs.replayed, runs.certain, runs.kept,
        state.quiet.stride(0), taken.stride(0), taken.shape[0] - 1, num_warps=1,
    )  # fmt: skip


@quick
@triton.jit(do_not_specialize=["last"])
def _find_of_drafts(
    rows_ptr, computed_ptr, taken_ptr, lines_ptr, replayed_ptr, certain_ptr, kept_ptr,
    computed_stride, taken_stride, last, TRIES: tl.constexpr,
):  # fmt: skip
    run = tl.program_id(0)
    row = tl.load(rows_ptr + run).to(tl.int64)
    line = tl.minimum(row, last)
    moves = line < last
    taken = tl.load(taken_ptr + line * taken_stride)
    computed = tl.load(computed_ptr + row * computed_stride)
    certain = tl.where(TRIES != 0, 1, computed - taken)
    tl.store(lines_ptr + run, line.to(tl.int32))
    tl.store(replayed_ptr + run, 0)
    tl.store(kept_ptr + run, 0)
    tl.store(certain_ptr + run, tl.where(moves, certain, 0))
    tl.store(taken_ptr + line * taken_stride, computed, mask=moves & (TRIES == 0))


@quick
@triton.jit(do_not_specialize=["last"])
def _forget(rows_ptr, computed_ptr, taken_ptr, computed_stride, taken_stride, last):
    row = tl.load(rows_ptr + tl.program_id(0)).to(tl.int64)
    inside = row < last
    taken = tl.load(taken_ptr + row * taken_stride, mask=inside, other=0)
    tl.store(computed_ptr + row * computed_stride, taken, mask=inside)


@quick
@triton.jit(do_not_specialize=["words"])
def _copy(
    target_ptr, source_ptr, lines_ptr, source_layer, source_line, target_layer, target_line, words,
    AT_ONCE: tl.constexpr,
):  # fmt: skip
    """A program per line, layer and piece of it."""
    line, layer = tl.load(lines_ptr + tl.program_id(0)).to(tl.int64), tl.program_id(1).to(tl.int64)
    at = tl.program_id(2) * AT_ONCE + tl.arange(0, AT_ONCE)
    inside = at < words
    values = tl.load(source_ptr + layer * source_layer + line * source_line + at, mask=inside)
    tl.store(target_ptr + layer * target_layer + line * target_line + at, values, mask=inside)


def find_draft_runs(
    proposer: DraftState, batch: DraftBatch, taken: torch.Tensor, runs: StateRuns, following: StateRuns
) -> None:
    for of_batch, rows, tries in ((runs, batch.first.rows, 0), (following, batch.next.line_rows, 1)):
        if not rows.shape[0]:
            continue
        _find_of_drafts[(rows.shape[0],)](
            rows, proposer.computed, taken, of_batch.rows, of_batch.replayed, of_batch.certain, of_batch.kept,
            proposer.computed.stride(0), taken.stride(0), taken.shape[0] - 1, TRIES=tries, num_warps=1,
        )  # fmt: skip


def forget_drafts(proposer: DraftState, batch: DraftBatch, taken: torch.Tensor) -> None:
    rows, computed = batch.first.rows, proposer.computed
    _forget[(rows.shape[0],)](
        rows, computed, taken, computed.stride(0), taken.stride(0), taken.shape[0] - 1, num_warps=1
    )


def copy_lines(source: torch.Tensor, target: torch.Tensor, lines: torch.Tensor) -> None:
    """As words of 16 or 32 bits."""
    words = source[0, 0].numel()
    if not (words and lines.shape[0]):
        return
    at_once = min(_COPIED // source.element_size(), triton.next_power_of_2(words))
    _copy[(lines.shape[0], source.shape[0], triton.cdiv(words, at_once))](
        target, source, lines, source.stride(0), source.stride(1), target.stride(0), target.stride(1), words,
        AT_ONCE=at_once, num_warps=4,
    )  # fmt: skip

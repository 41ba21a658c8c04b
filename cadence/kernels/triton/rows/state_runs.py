"""What is to become of rows' states in a forward: one launch, a program per run."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.triton.common.launch import quick


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

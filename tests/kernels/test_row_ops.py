"""Rows moving from token to token: every implementation does what the reference does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

from cadence.core.step import NO_TOKEN
from cadence.device.calls import Calls
from cadence.kernels.cpu.rows import CpuRowOps
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import FAILED, MOST_STOPS, RowOps, RowState, StepBatch
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.triton.rows import TritonRowOps

pytestmark = pytest.mark.device

NUM_ROWS, LENGTH, BLOCK_SIZE, VOCAB = 9, 40, 8, 6  # so few tokens that stops are hit often


def make_state(rng: np.random.Generator, device: str) -> RowState:
    """Counters are columns of one table, as they are in the runner."""
    columns = torch.zeros((NUM_ROWS, 6), dtype=torch.int32)
    computed = torch.from_numpy(rng.integers(2, LENGTH - 4, NUM_ROWS).astype(np.int32))
    columns[:, 0] = computed
    columns[:, 1] = computed + torch.from_numpy(rng.integers(-2, 4, NUM_ROWS).astype(np.int32))
    columns[:, 2] = computed + torch.from_numpy(rng.integers(2, 5, NUM_ROWS).astype(np.int32))
    columns[:, 3] = torch.from_numpy(rng.integers(0, 2, NUM_ROWS).astype(np.int32))
    columns = columns.to(device)
    stops = torch.full((NUM_ROWS, MOST_STOPS), -1, dtype=torch.int32)
    stops[:, 0] = torch.from_numpy(rng.integers(0, VOCAB, NUM_ROWS).astype(np.int32))
    stops[::2, MOST_STOPS - 1] = 3
    tokens = torch.from_numpy(rng.integers(0, VOCAB, (NUM_ROWS, LENGTH)).astype(np.int32))
    return RowState(tokens.to(device), columns[:, 0], columns[:, 1], columns[:, 2], columns[:, 3], stops.to(device))


def make_batch(rows: list[int], counts: list[int], lines: list[int], padding: int, device: str) -> StepBatch:
    """Rows with runs of so many tokens and so many lines; what `gather` is to fill in holds -7."""
    total, num_lines = sum(counts) + padding, sum(lines)

    def ints(values: list[int] | np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.asarray(values, dtype=np.int32)).to(device)

    def empty(count: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.full((count,), -7, dtype=dtype, device=device)

    return StepBatch(
        rows=ints(rows),
        query_start=ints(np.cumsum([0, *counts])),
        line_start=ints(np.cumsum([0, *lines])),
        ids=empty(total, torch.int32),
        positions=empty(total, torch.int64),
        slots=(empty(total, torch.int64), empty(total, torch.int64)),
        seq_lens=empty(len(rows), torch.int32),
        line_at=empty(num_lines, torch.int64),
        line_rows=empty(num_lines, torch.int32),
        line_lengths=empty(num_lines, torch.int32),
        num_single=0,
        max_query_len=max(*counts, padding, 1),
    )


def runs(rng: np.random.Generator, kind: str, state: RowState) -> tuple[list[int], list[int], list[int], int]:
    """-> rows, tokens of each, lines of each, padding"""
    rows = rng.permutation(NUM_ROWS)[:6]
    if kind == "one each":
        return rows.tolist(), [1] * 6, [1] * 6, 0
    state.num_computed.clamp_(max=LENGTH - 12)
    counts = rng.integers(0, 9, 6)
    return rows.tolist(), counts.tolist(), np.minimum(counts, rng.integers(0, 2, 6)).tolist(), int(rng.integers(0, 4))


def run(ops: RowOps, kind: str, seed: int, device: str) -> list[torch.Tensor]:
    """Gathers, then commits tokens that include impossible choices; everything that may have changed."""
    rng = np.random.default_rng(seed)
    state = make_state(rng, device)
    tables = tuple(
        torch.from_numpy(rng.integers(1, 50, (NUM_ROWS, LENGTH // BLOCK_SIZE)).astype(np.int32)).to(device)
        for _ in range(2)
    )
    batch = make_batch(*runs(rng, kind, state), device)
    ops.gather(state, tables, BLOCK_SIZE, batch)
    num_lines = batch.line_at.shape[0]
    peaks = torch.tensor([1.0, -5.0, float("nan"), float("inf"), float("-inf"), 0.0], device=device)[:num_lines]
    chosen = torch.from_numpy(rng.integers(0, VOCAB, 6).astype(np.int32)).to(device)[:num_lines]
    out = torch.full((num_lines,), -7, dtype=torch.int32, device=device)
    ops.commit(state, batch, chosen, peaks, out)
    lines = (batch.line_at, batch.line_rows, batch.line_lengths)
    tensors = (batch.ids, batch.positions, batch.seq_lens, *batch.slots, *lines, out)
    return [tensor.cpu() for tensor in (*tensors, state.tokens, state.num_computed, state.quiet)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["one each", "runs"])
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_rows_move_as_in_the_reference(name: str, kind: str, seed: int) -> None:
    ops, device = (CpuRowOps(CpuLibrary(Calls())), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    for ours, expected in zip(run(ops, kind, seed, device), run(ReferenceRowOps(), kind, seed, "cpu"), strict=True):
        assert torch.equal(ours, expected)


def test_a_run_is_the_rows_next_tokens_and_its_lines_are_behind_the_last() -> None:
    state = make_state(np.random.default_rng(0), "cpu")
    state.num_computed[:] = torch.arange(NUM_ROWS, dtype=torch.int32) * 3
    state.quiet[:] = 0
    state.quiet[4] = 1
    table = torch.arange(1, 1 + NUM_ROWS * 5, dtype=torch.int32).view(NUM_ROWS, 5)
    batch = make_batch([2, 4, 0], [3, 1, 4], [1, 1, 0], 2, "cpu")
    ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
    assert batch.positions.tolist() == [6, 7, 8, 11, 0, 1, 2, 3, 0, 0], "a quiet row stands before its last token"
    known = state.tokens
    assert batch.ids.tolist() == [*known[2, 6:9].tolist(), int(known[4, 11]), *known[0, :4].tolist(), 0, 0]
    assert batch.seq_lens.tolist() == [9, 12, 4]
    first, second = int(table[2, 0]) * BLOCK_SIZE, int(table[2, 1]) * BLOCK_SIZE
    assert batch.slots[0].tolist() == [first + 6, first + 7, second, 0, *range(8, 12), 0, 0]
    assert batch.line_at.tolist() == [2, 3] and batch.line_rows.tolist() == [2, 4]
    assert batch.line_lengths.tolist() == [9, 12]
    out = torch.zeros(2, dtype=torch.int32)
    ReferenceRowOps().commit(state, batch, torch.tensor([5, 5], dtype=torch.int32), torch.ones(2), out)
    assert out.tolist() == [5, NO_TOKEN] and int(state.tokens[2, 9]) == 5
    assert state.num_computed[torch.tensor([2, 4, 0])].tolist() == [9, 12, 4], "also of rows without a line"


def test_a_quiet_row_yields_nothing_and_changes_nothing() -> None:
    state = make_state(np.random.default_rng(0), "cpu")
    state.quiet[:] = 1
    before = [state.tokens.clone(), state.num_computed.clone()]
    batch = make_batch([4, 4, 2], [1, 1, 1], [1, 1, 1], 0, "cpu")  # padding names one row many times
    table = torch.ones((NUM_ROWS, 5), dtype=torch.int32)
    ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
    out = torch.zeros(3, dtype=torch.int32)
    ReferenceRowOps().commit(state, batch, torch.ones(3, dtype=torch.int32), torch.ones(3), out)
    assert out.tolist() == [NO_TOKEN] * 3
    assert torch.equal(state.tokens, before[0]) and torch.equal(state.num_computed, before[1])


def test_rows_end_by_stop_token_length_or_failure() -> None:
    columns = torch.tensor([[5, 6, 20], [5, 9, 20], [5, 6, 7], [5, 6, 20]], dtype=torch.int32)  # computed, min, max
    stops = torch.full((4, MOST_STOPS), -1, dtype=torch.int32)
    stops[:, 3] = 42
    quiet = torch.zeros(4, dtype=torch.int32)
    tokens = torch.zeros((4, 30), dtype=torch.int32)
    state = RowState(tokens, columns[:, 0], columns[:, 1], columns[:, 2], quiet, stops)
    batch = make_batch([0, 1, 2, 3], [1] * 4, [1] * 4, 0, "cpu")
    table = torch.ones((4, 5), dtype=torch.int32)
    ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
    out = torch.zeros(4, dtype=torch.int32)
    peaks = torch.tensor([0.0, 0.0, 0.0, float("nan")])
    ReferenceRowOps().commit(state, batch, torch.full((4,), 42, dtype=torch.int32), peaks, out)
    assert out.tolist() == [42, 42, 42, FAILED]
    assert quiet.tolist() == [1, 0, 1, 1]  # a stop token; too early for it; the last token; a failure

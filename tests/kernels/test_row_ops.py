"""Rows moving from token to token: every implementation does what the reference does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.helpers.triton_mode import DEVICE  # isort: skip - before anything that imports triton

from cadence.core.step import NO_TOKEN
from cadence.device.calls import Calls
from cadence.kernels.cpu.rows import CpuRowOps
from cadence.kernels.interface.row_ops import FAILED, MOST_STOPS, DecodeInputs, RowOps, RowState, Sampled
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


def run(ops: RowOps, seed: int, device: str) -> list[torch.Tensor]:
    """Gathers, then commits tokens that include impossible choices; everything that may have changed."""
    rng = np.random.default_rng(seed)
    state = make_state(rng, device)
    tables = tuple(
        torch.from_numpy(rng.integers(1, 50, (NUM_ROWS, LENGTH // BLOCK_SIZE)).astype(np.int32)).to(device)
        for _ in range(2)
    )
    rows = torch.from_numpy(rng.permutation(NUM_ROWS)[:6].astype(np.int32)).to(device)

    def empty(dtype: torch.dtype) -> torch.Tensor:
        return torch.full((6,), -7, dtype=dtype, device=device)

    inputs = DecodeInputs(
        rows, empty(torch.int32), empty(torch.int64), empty(torch.int32), (empty(torch.int64), empty(torch.int64))
    )
    ops.gather(state, tables, BLOCK_SIZE, inputs)
    peaks = torch.tensor([1.0, -5.0, float("nan"), float("inf"), float("-inf"), 0.0], device=device)
    chosen = torch.from_numpy(rng.integers(0, VOCAB, 6).astype(np.int32)).to(device)
    out = empty(torch.int32)
    ops.commit(state, Sampled(rows, inputs.seq_lens, chosen, peaks), out[None])
    tensors = (inputs.ids, inputs.positions, inputs.seq_lens, *inputs.slots, out)
    return [tensor.cpu() for tensor in (*tensors, state.tokens, state.num_computed, state.quiet)]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("kind", ["cpu", "triton"])
def test_rows_move_as_in_the_reference(kind: str, seed: int) -> None:
    ops, device = (CpuRowOps(Calls()), "cpu") if kind == "cpu" else (TritonRowOps(), DEVICE)
    for ours, expected in zip(run(ops, seed, device), run(ReferenceRowOps(), seed, "cpu"), strict=True):
        assert torch.equal(ours, expected)


def test_a_quiet_row_yields_nothing_and_changes_nothing() -> None:
    state = make_state(np.random.default_rng(0), "cpu")
    state.quiet[:] = 1
    before = [state.tokens.clone(), state.num_computed.clone()]
    rows = torch.tensor([4, 4, 2], dtype=torch.int32)  # padding names one row many times
    lengths = state.num_computed[rows.long()].clone()
    out = torch.zeros(3, dtype=torch.int32)
    ReferenceRowOps().commit(state, Sampled(rows, lengths, torch.ones(3, dtype=torch.int32), torch.ones(3)), out[None])
    assert out.tolist() == [NO_TOKEN] * 3
    assert torch.equal(state.tokens, before[0]) and torch.equal(state.num_computed, before[1])


def test_rows_end_by_stop_token_length_or_failure() -> None:
    columns = torch.tensor([[5, 6, 20], [5, 9, 20], [5, 6, 7], [5, 6, 20]], dtype=torch.int32)  # computed, min, max
    stops = torch.full((4, MOST_STOPS), -1, dtype=torch.int32)
    stops[:, 3] = 42
    quiet = torch.zeros(4, dtype=torch.int32)
    tokens = torch.zeros((4, 30), dtype=torch.int32)
    state = RowState(tokens, columns[:, 0], columns[:, 1], columns[:, 2], quiet, stops)
    out = torch.zeros(4, dtype=torch.int32)
    peaks = torch.tensor([0.0, 0.0, 0.0, float("nan")])
    sampled = Sampled(torch.arange(4, dtype=torch.int32), torch.full((4,), 6), torch.full((4,), 42), peaks)
    sampled = Sampled(sampled.rows, sampled.lengths.int(), sampled.tokens.int(), peaks)
    ReferenceRowOps().commit(state, sampled, out[None])
    assert out.tolist() == [42, 42, 42, FAILED]
    assert quiet.tolist() == [1, 0, 1, 1]  # a stop token; too early for it; the last token; a failure

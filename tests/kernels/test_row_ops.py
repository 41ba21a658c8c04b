"""Rows moving from token to token: every implementation does what the reference does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret_rows  # isort: skip - before anything that imports triton

from cadence.core.contract.step import NO_TOKEN
from cadence.device.calls import Calls
from cadence.kernels.cpu.rows import CpuRowOps
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.row_ops import FAILED, MOST_STOPS, NO_DRAFT, RowOps, RowState, StepBatch, Turns
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.triton.rows.rows import TritonRowOps

pytestmark = pytest.mark.device

NUM_ROWS, LENGTH, BLOCK_SIZE, VOCAB = 9, 40, 8, 6  # so few tokens that stops are hit often


def cpu_row_ops() -> CpuRowOps:
    calls = Calls()
    return CpuRowOps(calls, CpuLibrary(calls))


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
    return RowState(tokens.to(device), *columns.unbind(1)[:5], stops.to(device))


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
    if kind == "drafts":  # more of them, or fewer, than there is room for; beside a prompt and the end of one
        ahead = torch.from_numpy(rng.integers(6, 9, NUM_ROWS).astype(np.int32))
        state.max_len.copy_(state.num_computed.cpu() + ahead)
        waiting = torch.from_numpy(rng.integers(0, 6, NUM_ROWS).astype(np.int32))
        waiting[rows[4:6]] = 0
        state.num_drafts.copy_(waiting * (1 - state.quiet.cpu()))
        return rows.tolist(), [4, 4, 3, 1, 5, 6], [4, 4, 3, 1, 0, 1], 3
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
    strange = [1.0, -5.0, float("nan"), float("inf"), float("-inf"), 0.0]
    peaks = torch.tensor(strange if num_lines <= 6 else [1.0] * 4 + strange + [0.5] * 9, device=device)[:num_lines]
    at, lengths = batch.line_rows.cpu().long(), batch.line_lengths.cpu().long()
    drafts = state.tokens.cpu()[at, lengths]  # what is chosen is often what was proposed
    other = torch.from_numpy(rng.integers(0, VOCAB, num_lines).astype(np.int32))
    chosen = torch.where(torch.from_numpy(rng.random(num_lines) < 0.6), drafts, other).to(device)
    out = torch.full((num_lines,), -7, dtype=torch.int32, device=device)
    ops.commit(state, batch, chosen, peaks, out)
    counters = [state.num_computed.clone(), state.num_drafts.clone()]
    most = torch.from_numpy(rng.integers(0, 6, NUM_ROWS).astype(np.int32)).to(device)
    ops.propose_ngram(state, batch, most, 1, 3)
    lines = (batch.line_at, batch.line_rows, batch.line_lengths)
    tensors = (batch.ids, batch.positions, batch.seq_lens, *batch.slots, *lines, out, *counters)
    return [tensor.cpu() for tensor in (*tensors, state.tokens, state.num_drafts, state.quiet)]


CASES = [
    (name, kind, seed) for name in ("cpu", "triton") for kind in ("one each", "runs", "drafts") for seed in range(8)
]


@pytest.mark.parametrize(
    ("name", "kind", "seed"), interpret_rows(CASES, [x for x in CASES if x[0] == "cpu" or x[2] < 2])
)
def test_rows_move_as_in_the_reference(name: str, kind: str, seed: int) -> None:
    ops, device = (cpu_row_ops(), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    for ours, expected in zip(run(ops, kind, seed, device), run(ReferenceRowOps(), kind, seed, "cpu"), strict=True):
        assert torch.equal(ours, expected)


def test_a_run_is_the_rows_next_tokens_and_its_lines_are_after_the_last() -> None:
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
    state = RowState(tokens, columns[:, 0], columns[:, 1], columns[:, 2], quiet, torch.zeros_like(quiet), stops)
    batch = make_batch([0, 1, 2, 3], [1] * 4, [1] * 4, 0, "cpu")
    table = torch.ones((4, 5), dtype=torch.int32)
    ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
    out = torch.zeros(4, dtype=torch.int32)
    peaks = torch.tensor([0.0, 0.0, 0.0, float("nan")])
    ReferenceRowOps().commit(state, batch, torch.full((4,), 42, dtype=torch.int32), peaks, out)
    assert out.tolist() == [42, 42, 42, FAILED]
    assert quiet.tolist() == [1, 0, 1, 1]  # a stop token; too early for it; the last token; a failure


def state_of(known: list[int], drafts: list[int], max_len: int, stop: int) -> RowState:
    """One row, all of whose tokens but the newest are computed."""
    columns = torch.tensor([[len(known) - 1], [0], [max_len], [0], [len(drafts)]], dtype=torch.int32)
    tokens = torch.zeros((1, LENGTH), dtype=torch.int32)
    tokens[0, : len(known) + len(drafts)] = torch.tensor(known + drafts)
    stops = torch.full((1, MOST_STOPS), stop, dtype=torch.int32)
    return RowState(tokens, *columns, stops)


@pytest.mark.parametrize(
    ("drafts", "chosen", "expected", "ends"),
    [
        ([6, 7, 8], [6, 7, 8, 9], [6, 7, 8, 9], False),  # all of them, and one token more
        ([6, 7, 8], [6, 5, 8, 9], [6, 5, NO_TOKEN, NO_TOKEN], False),  # up to the first that was not chosen
        ([6, 7, 8], [5, 7, 8, 9], [5, NO_TOKEN, NO_TOKEN, NO_TOKEN], False),
        ([6], [6, 7, 8, 9], [6, 7, NO_DRAFT, NO_DRAFT], False),
        ([], [6, 7, 8, 9], [6, NO_DRAFT, NO_DRAFT, NO_DRAFT], False),
        ([6, 2, 8], [6, 2, 8, 9], [6, 2, NO_TOKEN, NO_TOKEN], True),  # a stop token
        ([6, 7, 8, 9], [6, 7, 8, 9], [6, 7, 8, 9], False),  # one more than the run has room for
    ],
)
def test_drafts_are_kept_as_long_as_they_are_what_is_chosen(
    drafts: list[int], chosen: list[int], expected: list[int], ends: bool
) -> None:
    state = state_of([1, 3, 4], drafts, max_len=20, stop=2)
    batch = make_batch([0], [4], [4], 0, "cpu")
    table = torch.tensor([[3, 5, 7, 9, 11]], dtype=torch.int32)
    ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
    used = drafts[:3]
    padding = [0] * (3 - len(used))
    assert batch.ids.tolist() == [4, *used, *padding]
    assert batch.positions.tolist() == [*range(2, 3 + len(used)), *padding]
    assert batch.slots[0].tolist() == [*(3 * BLOCK_SIZE + at for at in range(2, 3 + len(used))), *padding]
    assert batch.line_lengths.tolist() == [min(at, 3 + len(used)) for at in range(3, 7)], "none beyond what is known"
    out = torch.zeros(4, dtype=torch.int32)
    ReferenceRowOps().commit(state, batch, torch.tensor(chosen, dtype=torch.int32), torch.ones(4), out)
    assert out.tolist() == expected
    got = [token for token in expected if token >= 0]
    assert state.tokens[0, : 3 + len(got)].tolist() == [1, 3, 4, *got]
    assert (int(state.num_computed[0]), int(state.quiet[0]), int(state.num_drafts[0])) == (2 + len(got), ends, 0)


def test_a_failure_or_the_last_token_ends_a_run() -> None:
    table = torch.ones((1, 5), dtype=torch.int32)
    for max_len, peaks, expected in (
        (5, [1.0] * 4, [6, 7, NO_TOKEN, NO_TOKEN]),
        (20, [1.0, float("nan"), 1.0, 1.0], [6, FAILED, NO_TOKEN, NO_TOKEN]),
        (20, [1.0, 1.0, 1.0, float("nan")], [6, 7, 8, FAILED]),
    ):
        state = state_of([1, 3, 4], [6, 7, 8], max_len, stop=-1)
        batch = make_batch([0], [4], [4], 0, "cpu")
        ReferenceRowOps().gather(state, (table, table), BLOCK_SIZE, batch)
        out = torch.zeros(4, dtype=torch.int32)
        ReferenceRowOps().commit(state, batch, torch.tensor([6, 7, 8, 9], dtype=torch.int32), torch.tensor(peaks), out)
        assert out.tolist() == expected and int(state.quiet[0]) == 1


@pytest.mark.parametrize(
    ("known", "most", "expected"),
    [
        ([1, 2, 3, 4, 5, 2, 3], 3, [4, 5, 2]),
        ([1, 2, 3, 9, 1, 2, 4, 9, 2, 3, 7, 1, 2], 2, [4, 9]),  # the latest of the longest
        ([8, 1, 2, 5, 9, 2, 6, 8, 1, 2], 2, [5, 9]),  # the longest, though another is later
        ([5, 5], 4, [5, 5, 5, 5]),  # what follows goes on into what it brings
        ([1, 2, 3], 4, []),
        ([3], 4, []),
        ([1, 2, 1], 0, []),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2], 40, [3, 4, 5, 6, 7, 8, 9]),  # one token must have room after them
    ],
)
def test_prompt_lookup_repeats_what_followed_before(known: list[int], most: int, expected: list[int]) -> None:
    for ops in (ReferenceRowOps(), cpu_row_ops()):
        state = state_of(known, [], max_len=19, stop=-1)
        batch = make_batch([0], [1], [1], 0, "cpu")
        ops.propose_ngram(state, batch, torch.tensor([most], dtype=torch.int32), 1, 3)
        assert int(state.num_drafts[0]) == len(expected)
        assert state.tokens[0, len(known) : len(known) + len(expected)].tolist() == expected


def test_a_forward_is_done_again_until_a_row_ends() -> None:
    for ops in (ReferenceRowOps(), cpu_row_ops()):
        state = state_of([1, 3, 4], [], max_len=20, stop=-1)
        batch = make_batch([0], [1], [1], 0, "cpu")
        turns = Turns(torch.zeros(4, dtype=torch.int32), torch.full((3, 2), -7, dtype=torch.int32))
        turns.begin(most=3, num_quiet=0)
        told = []
        for token in (5, 6, 7, 8):
            ops.turn(state, batch, torch.tensor([token], dtype=torch.int32), turns)
            told.append((int(turns.control[0]), turns.done))
        assert told == [(1, 1), (1, 2), (0, 3), (0, 4)] and turns.log[:, 0].tolist() == [5, 6, 7]
        turns.begin(most=3, num_quiet=0)
        state.quiet[0] = 1
        ops.turn(state, batch, torch.tensor([9], dtype=torch.int32), turns)
        assert (int(turns.control[0]), turns.done, turns.log[0].tolist()) == (0, 1, [9, -7])
        turns.begin(most=3, num_quiet=1)
        state.num_drafts[0] = 2
        ops.turn(state, batch, torch.tensor([9], dtype=torch.int32), turns)
        assert int(turns.control[0]) == 0, "drafts want a forward of another width"


def found_runs(ops: RowOps, kind: str, seed: int, device: str) -> list[torch.Tensor]:
    """Of states that have all tokens of their rows but some; those of the last rows share a line."""
    rng = np.random.default_rng(seed)
    state = make_state(rng, device)
    rows, counts, lines, padding = runs(rng, kind, state)
    batch = make_batch(rows, counts, lines, padding, device)
    taken = torch.zeros((NUM_ROWS - 2, 2), dtype=torch.int32, device=device)
    behind = torch.from_numpy(rng.integers(0, 4, NUM_ROWS - 2).astype(np.int32)).to(device)
    taken[:, 1] = state.num_computed[: NUM_ROWS - 2] - behind
    empty = [torch.full((len(rows),), -7, dtype=torch.int32, device=device) for _ in range(4)]
    found = StateRuns(empty[0], batch.query_start, *empty[1:], num_single=0, max_query_len=batch.max_query_len)
    ops.gather(state, (), BLOCK_SIZE, replace(batch, slots=()))  # a model without attention has no tables
    ops.find_state_runs(state, batch, taken[:, 1], found)
    return [each.cpu() for each in (*empty, taken, batch.ids, batch.positions, batch.seq_lens)]


@pytest.mark.parametrize(
    ("name", "kind", "seed"), interpret_rows(CASES, [x for x in CASES if x[0] == "cpu" or x[2] < 1])
)
def test_runs_of_states_are_found_as_in_the_reference(name: str, kind: str, seed: int) -> None:
    ops, device = (cpu_row_ops(), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    ours, expected = found_runs(ops, kind, seed, device), found_runs(ReferenceRowOps(), kind, seed, "cpu")
    for one, other in zip(ours, expected, strict=True):
        assert torch.equal(one, other)


def test_a_state_takes_in_what_is_certain_and_what_turned_out_to_be() -> None:
    """Three forwards of a row: the end of a prompt, a run with drafts of which one is kept, and what follows."""
    state = state_of([1, 3, 4, 5], [], max_len=20, stop=2)
    state = replace(state, quiet=torch.tensor([0]), num_drafts=torch.tensor([0]))
    taken = torch.tensor([3, -5], dtype=torch.int32)  # the second line is the dummy's
    counts = [torch.zeros(1, dtype=torch.int32) for _ in range(4)]
    seen = []
    for tokens, lines, drafts, computed in ((1, 1, 0, 4), (4, 4, 2, 6), (4, 4, 3, 7)):
        batch = make_batch([0], [tokens], [lines], 0, "cpu")
        state.num_drafts[:] = drafts
        found = StateRuns(counts[0], batch.query_start, *counts[1:], num_single=0, max_query_len=tokens)
        ReferenceRowOps().find_state_runs(state, batch, taken, found)
        seen.append([int(each) for each in (*counts[1:], taken[0])])
        state.num_computed[:] = computed
    # replayed, certain, kept, taken: of two drafts one was right; of four places three had drafts
    assert seen == [[0, 1, 0, 4], [0, 1, 2, 5], [1, 1, 3, 7]]
    assert int(taken[1]) == -5


def test_a_quiet_rows_state_stays_as_it_is_and_so_does_the_last() -> None:
    state = make_state(np.random.default_rng(0), "cpu")
    state.quiet[:] = torch.tensor([1, 0, 0, 0, 0, 0, 0, 0, 0], dtype=torch.int32)
    batch = make_batch([0, 3, 8], [1, 1, 4], [1, 1, 0], 0, "cpu")
    taken = torch.full((4,), 7, dtype=torch.int32)
    counts = [torch.full((3,), 9, dtype=torch.int32) for _ in range(4)]
    found = StateRuns(counts[0], batch.query_start, *counts[1:], num_single=0, max_query_len=4)
    ReferenceRowOps().find_state_runs(state, batch, taken, found)
    assert [each.tolist() for each in counts] == [[0, 3, 3], [0] * 3, [0] * 3, [0] * 3]
    assert taken.tolist() == [7] * 4

"""What a model that drafts computes after a forward: every implementation does what the reference does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.helpers.triton_mode import DEVICE, interpret_rows  # isort: skip - before anything that imports triton

from cadence.kernels.interface.row_ops import DraftBatch, DraftState, KeptStates, RowOps, RowState, StepBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.kernels.reference.rows import ReferenceRowOps
from cadence.kernels.triton.rows.rows import TritonRowOps
from tests.kernels.test_row_ops import BLOCK_SIZE, LENGTH, NUM_ROWS, cpu_row_ops, make_batch, make_state

pytestmark = pytest.mark.device

NUM_IDS, MAX_LEN = 5, 30  # of a proposer that knows fewer tokens and shorter texts than its target


def draft_batch(rows: list[int], counts: list[int], lines: list[int], padding: int, device: str) -> DraftBatch:
    first = make_batch(rows, counts, lines, padding, device)
    num = sum(lines)
    single = make_batch([0] * num, [1] * num, [1] * num, 0, device)
    single = StepBatch(
        rows=first.line_rows,
        query_start=single.query_start,
        line_start=single.line_start,
        ids=single.ids,
        positions=single.positions,
        slots=single.slots,
        seq_lens=single.seq_lens,
        line_at=single.line_at,
        line_rows=first.line_rows,
        line_lengths=first.line_lengths,
        num_single=num,
        max_query_len=1,
    )
    return DraftBatch(first, single)


def make_proposer(rng: np.random.Generator, state: RowState, ahead: int, device: str) -> DraftState:
    """It lacks up to three positions, or has some of drafts that were not kept."""
    computed = state.num_computed.cpu() + torch.from_numpy(rng.integers(-3, 3, NUM_ROWS).astype(np.int32))
    if ahead:
        computed = state.num_computed.cpu() - torch.from_numpy(rng.integers(1, 4, NUM_ROWS).astype(np.int32))
    columns = torch.stack([computed.clamp(min=0), torch.zeros_like(computed)], dim=1).to(device)
    most = torch.from_numpy(rng.integers(0, 5, (NUM_ROWS, 3)).astype(np.int32)).to(device)
    tables = tuple(
        torch.from_numpy(rng.integers(1, 50, (NUM_ROWS, LENGTH // BLOCK_SIZE)).astype(np.int32)).to(device)
        for _ in range(2)
    )
    if rng.random() < 0.3:  # neither it nor its target has attention
        tables = ()
    return DraftState(columns[:, 0], most[:, 1], tables, BLOCK_SIZE, ahead, MAX_LEN, NUM_IDS)


def run(ops: RowOps, seed: int, ahead: int, device: str) -> list[torch.Tensor]:
    """Three drafts -> everything that may have changed, after each."""
    rng = np.random.default_rng(seed)
    state = make_state(rng, device)
    proposer = make_proposer(rng, state, ahead, device)
    rows = rng.permutation(NUM_ROWS)[:6].tolist()
    counts = rng.integers(1, 5, 6)
    lines = rng.integers(0, 2, 6)
    batch = draft_batch(rows, counts.tolist(), lines.tolist(), int(rng.integers(0, 4)), device)
    if not proposer.tables:
        batch = DraftBatch(*(replace(part, slots=()) for part in (batch.first, batch.next)))
    taken = proposer.computed.cpu().clamp(max=state.num_computed.cpu())[: NUM_ROWS - 2].contiguous().to(device)
    seen: list[torch.Tensor] = []

    def look(part: StepBatch) -> None:
        lines = (part.line_rows, part.line_lengths)
        found = (part.ids, part.positions, *part.slots, part.seq_lens, *lines, batch.next.seq_lens)
        seen.extend(tensor.cpu().clone() for tensor in (*found, proposer.computed, state.tokens, state.num_drafts))

    ops.begin_drafts(state, proposer, batch)
    look(batch.first)
    seen.append(batch.first.line_at.cpu().clone())
    of_states, following = state_runs(batch.first, device), state_runs(batch.next, device)
    ops.find_draft_runs(proposer, batch, taken, of_states, following)
    for found in (of_states, following):
        seen.extend(each.cpu().clone() for each in (found.rows, found.replayed, found.certain, found.kept, taken))
    for draft in range(3):
        num = int(lines.sum())
        chosen = torch.from_numpy(rng.integers(0, NUM_IDS + 2, num).astype(np.int32)).to(device)
        peaks = torch.from_numpy(rng.choice([1.0, 2.0, -3.0, np.nan, np.inf], num, p=[0.4, 0.3, 0.2, 0.05, 0.05]))
        ops.take_draft(state, proposer, batch, (chosen, peaks.float().to(device)), draft, draft == 2)
        look(batch.next)
    ops.forget_drafts(proposer, batch, taken)
    return [*seen, proposer.computed.cpu()]


def state_runs(batch: StepBatch, device: str) -> StateRuns:
    columns = torch.full((4, batch.rows.shape[0]), -7, dtype=torch.int32, device=device)
    return StateRuns(columns[0], batch.query_start, *columns[1:], num_single=0, max_query_len=batch.max_query_len)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_lines_are_copied(name: str, dtype: torch.dtype) -> None:
    """Between tables whose lines are apart in other ways; no other line changes."""
    ops, device = (cpu_row_ops(), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    source = torch.randn(3, 5, 7, 6).to(dtype).to(device)[:, :, :4]
    target = torch.randn(3, 5, 4, 6).to(dtype).to(device)
    expected = target.clone()
    expected[:, [3, 0, 4]] = source[:, [3, 0, 4]]
    ops.copy_lines(source, target, torch.tensor([3, 0, 4, 4], dtype=torch.int32, device=device))
    assert torch.equal(target, expected)


CASES = [(name, ahead, seed) for name in ("cpu", "triton") for ahead in (0, 1) for seed in range(8)]


@pytest.mark.parametrize(
    ("name", "ahead", "seed"), interpret_rows(CASES, [x for x in CASES if x[0] == "cpu" or x[2] < 2])
)
def test_drafts_are_made_as_in_the_reference(name: str, ahead: int, seed: int) -> None:
    ops, device = (cpu_row_ops(), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    for ours, expected in zip(run(ops, seed, ahead, device), run(ReferenceRowOps(), seed, ahead, "cpu"), strict=True):
        assert torch.equal(ours, expected)


def one_row(known: list[int], computed: int, most: int, ahead: int, max_len: int = 20) -> tuple[RowState, DraftState]:
    """All of its tokens but the newest are computed by the target, `computed` by the proposer."""
    columns = torch.tensor([[len(known) - 1], [0], [max_len], [0], [0]], dtype=torch.int32)
    tokens = torch.zeros((1, LENGTH), dtype=torch.int32)
    tokens[0, : len(known)] = torch.tensor(known)
    state = RowState(tokens, *columns, torch.full((1, 16), -1, dtype=torch.int32))
    table = torch.tensor([[3, 5, 7, 9, 11]], dtype=torch.int32)
    counters = torch.tensor([computed], dtype=torch.int32), torch.tensor([most], dtype=torch.int32)
    return state, DraftState(*counters, (table, table), BLOCK_SIZE, ahead, MAX_LEN, 100)


def take(state: RowState, proposer: DraftState, batch: DraftBatch, tokens: list[int]) -> None:
    for draft, token in enumerate(tokens):
        chosen = torch.tensor([token], dtype=torch.int32), torch.ones(1)
        ReferenceRowOps().take_draft(state, proposer, batch, chosen, draft, draft == len(tokens) - 1)


def test_a_model_computes_what_it_lacks_and_the_newest_token() -> None:
    state, proposer = one_row([1, 2, 3, 4, 5], computed=3, most=2, ahead=0)
    batch = draft_batch([0], [2], [1], 0, "cpu")
    ReferenceRowOps().begin_drafts(state, proposer, batch)
    assert batch.first.ids.tolist() == [4, 5] and batch.first.positions.tolist() == [3, 4]
    assert batch.first.slots[0].tolist() == [3 * BLOCK_SIZE + 3, 3 * BLOCK_SIZE + 4]
    assert batch.next.seq_lens.tolist() == [5] and batch.first.line_lengths.tolist() == [5]
    take(state, proposer, batch, [7, 8, 9])
    assert state.tokens[0, :8].tolist() == [1, 2, 3, 4, 5, 7, 8, 0] and int(state.num_drafts[0]) == 2
    assert int(proposer.computed[0]) == 7, "the newest and both drafts: each was taken before the last"


def test_a_head_computes_the_targets_run_with_the_tokens_after_it() -> None:
    state, proposer = one_row([1, 2, 3, 4, 5], computed=2, most=4, ahead=1)
    batch = draft_batch([0], [4], [1], 0, "cpu")
    ReferenceRowOps().begin_drafts(state, proposer, batch)
    assert batch.first.ids.tolist() == [4, 5, 0, 0] and batch.first.positions.tolist() == [2, 3, 0, 0]
    assert batch.first.line_at.tolist() == [1] and batch.next.seq_lens.tolist() == [4]
    take(state, proposer, batch, [7, 8])
    assert batch.next.positions.tolist() == [4] and batch.next.ids.tolist() == [7]
    assert int(proposer.computed[0]) == 4, "what follows is made of guesses, and made again"


@pytest.mark.parametrize(("computed", "max_len", "most"), [(1, 20, 3), (4, 7, 3), (4, 20, 0)])
def test_a_row_has_no_drafts_if_it_is_behind_full_or_wants_none(computed: int, max_len: int, most: int) -> None:
    state, proposer = one_row([1, 2, 3, 4, 5], computed, most, ahead=0, max_len=max_len)
    batch = draft_batch([0], [2], [1], 0, "cpu")
    ReferenceRowOps().begin_drafts(state, proposer, batch)
    take(state, proposer, batch, [7, 8])
    assert int(state.num_drafts[0]) == (1 if max_len == 7 else 0)
    assert int(proposer.computed[0]) == (3 if computed == 1 else 6 if max_len == 7 else 5)


def test_a_row_too_long_for_the_proposer_is_left_alone() -> None:
    state, proposer = one_row(list(range(1, MAX_LEN + 2)), computed=10, most=3, ahead=0, max_len=LENGTH)
    batch = draft_batch([0], [2], [1], 0, "cpu")
    ReferenceRowOps().begin_drafts(state, proposer, batch)
    take(state, proposer, batch, [7, 8])
    assert int(state.num_drafts[0]) == 0 and int(proposer.computed[0]) == 10
    assert batch.first.slots[0].tolist() == [0, 0], "nothing is stored"


ROOM, HIDDEN = 8, 1100  # more entries than a program copies at once


def waited(ops: RowOps, count: int, dtype: torch.dtype, device: str) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Six forwards in which four rows wait, beside one of several tokens -> all that is kept, and what is found of it
    by runs of three positions, and padding."""
    rng = np.random.default_rng(count)
    rings = tuple(torch.zeros((NUM_ROWS, ROOM, HIDDEN), dtype=dtype, device=device) for _ in range(count))
    kept, rows, first = KeptStates(rings), [4, 0, 7, 2, 5], [0, 3, 6, 13]
    batch = replace(make_batch(rows, [1, 1, 1, 1, 3], [1, 1, 1, 1, 0], 0, device), num_single=4)
    for forward in range(6):
        batch.positions.copy_(torch.tensor([position + forward for position in first] + [50, 51, 52]))
        states = [torch.from_numpy(rng.standard_normal((7, 2 * HIDDEN))).to(device, dtype) for _ in range(count)]
        ops.keep_states(kept, batch, tuple(each[:, :HIDDEN] for each in states))
    runs = make_batch([2, 0, 4], [3, 3, 3], [0, 0, 0], 2, device)
    runs.positions.copy_(torch.tensor([16, 17, 18, 6, 7, 8, 3, 4, 5, 0, 0]))
    return [ring.cpu() for ring in rings], [each.cpu()[:9] for each in ops.kept_states(kept, runs)]


@pytest.mark.parametrize("count", [1, 3, 5])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", ["cpu", "triton"])
def test_states_are_kept_as_in_the_reference(name: str, dtype: torch.dtype, count: int) -> None:
    ops, device = (cpu_row_ops(), "cpu") if name == "cpu" else (TritonRowOps(), DEVICE)
    ours, expected = waited(ops, count, dtype, device), waited(ReferenceRowOps(), count, dtype, "cpu")
    for mine, reference in zip((*ours[0], *ours[1]), (*expected[0], *expected[1]), strict=True):
        assert torch.equal(mine, reference)


def test_a_position_has_its_place_in_its_row() -> None:
    (ring,), (found,) = waited(ReferenceRowOps(), 1, torch.float32, "cpu")
    assert torch.equal(found[0], ring[2, 16 % ROOM]) and torch.equal(found[4], ring[0, 7])
    assert {row for row in range(NUM_ROWS) if ring[row].any()} == {4, 0, 7, 2}
    assert ring[4, 6:].any() == 0, "six positions of eight places"

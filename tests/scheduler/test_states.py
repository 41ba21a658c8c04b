"""Which prefixes have a snapshot of their state, where prompts are cut for one, and who goes on from which."""

from __future__ import annotations

import pytest

from cadence.core.contract.step import StepPlan
from cadence.core.inputs.attachments import KeysSpan
from cadence.core.model.state_spec import STATES, StateStats
from cadence.scheduler.features.states.feature import StateSnapshots
from cadence.scheduler.features.states.snapshots import NO_SLOT, SeenPrefixes, Snapshots
from cadence.scheduler.kv.kinds.block import RequestBlocks
from tests.helpers.toy_engine import ToyEngine, check_tokens, make_config
from tests.helpers.toy_model import make_layout, make_request

SIZE = 4  # tokens of a block


def make_engine(windows: tuple[int, ...] = (), num_snapshots: int = 4, **config: object) -> ToyEngine:
    return ToyEngine(make_config(**config), make_layout(windows, SIZE), 60, 40, num_snapshots=num_snapshots)


def chunks(engine: ToyEngine, name: str, prompt: list[int], max_tokens: int = 1) -> tuple[int, list[int]]:
    """A request alone -> tokens that it found, and the sizes of the steps that computed the rest of its prompt"""
    engine.add(make_request(name, prompt, max_tokens))
    sizes = []
    while engine.scheduler.has_unfinished():
        plan = engine.step()
        sizes += plan.num_tokens_np.tolist()
    return engine.outcomes[name].num_cached, sizes


def saved(plan: StepPlan) -> list[tuple[int, int]]:
    return plan.payloads.get(STATES, [])


@pytest.mark.parametrize("windows", [(), (0,), (0, 6)])
def test_a_prompt_is_cut_where_the_next_can_go_on(windows: tuple[int, ...]) -> None:
    engine = make_engine(windows)
    prompt = list(range(14))
    assert chunks(engine, "first", prompt) == (0, [12, 2])
    assert chunks(engine, "again", prompt) == (12, [2])
    assert chunks(engine, "longer", [*prompt, 9, 9, 9]) == (12, [4, 1])  # cut again, at its own last block
    assert chunks(engine, "shorter", prompt[:9]) == (0, [8, 1])  # a state cannot be cut back, and keys without one
    assert chunks(engine, "shorter again", prompt[:9]) == (8, [1])
    check_tokens(engine)
    assert engine.scheduler.stats().states == StateStats(slots=4, used=3, saved=3, restored=3)


def test_the_end_of_a_shared_beginning_has_a_snapshot_when_it_comes_again() -> None:
    engine = make_engine(max_num_batched_tokens=40)
    system = [1, 2, 3, 4, 5, 6, 7, 8]
    assert chunks(engine, "a", [*system, *[10] * 9]) == (0, [16, 1])
    assert chunks(engine, "b", [*system, *[9] * 9]) == (0, [8, 8, 1])
    assert chunks(engine, "c", [*system, *[8] * 9]) == (8, [8, 1])
    check_tokens(engine)


def test_a_request_goes_on_from_what_the_step_that_it_begins_in_saves() -> None:
    engine = make_engine(max_num_batched_tokens=40)
    engine.add(make_request("a", list(range(14)), 2))
    assert not saved(engine.step())
    engine.add(make_request("b", list(range(14)), 2))
    plan = engine.step()
    ((row, slot),) = saved(plan)
    assert row == 0 and plan.begun[0].payloads[STATES] == slot and plan.begun[0].num_computed == 12
    engine.drain()
    check_tokens(engine)


def test_what_a_plan_that_came_to_nothing_was_to_save_is_saved_by_the_next() -> None:
    """The row has ended by then, and its state is still there."""
    engine = make_engine()
    engine.add(make_request("a", list(range(14)), 2))
    engine.step()
    engine.abort(["a"])
    assert not len(engine.launch().rows_np)
    assert chunks(engine, "b", [5] * 3) == (0, [3])
    assert chunks(engine, "c", list(range(14))) == (12, [2])
    check_tokens_of(engine, "b", "c")


def check_tokens_of(engine: ToyEngine, *names: str) -> None:
    engine.outcomes = {name: engine.outcomes[name] for name in names}
    check_tokens(engine)


def test_a_failed_request_leaves_no_snapshot() -> None:
    engine = make_engine()
    engine.add(make_request("a", list(range(14)), 4))
    engine.step()
    engine.device.rows[0].fails = True
    engine.drain()
    assert chunks(engine, "b", list(range(14)))[0] == 0
    check_tokens_of(engine, "b")


def test_a_reset_forgets_snapshots() -> None:
    engine = make_engine()
    chunks(engine, "a", list(range(14)))
    engine.add(make_request("held", list(range(14)), 9))
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    engine.drain()
    assert engine.scheduler.reset_prefix_cache() and engine.scheduler.stats().states.used == 0
    assert chunks(engine, "b", list(range(14)))[0] == 0


def test_the_least_recently_used_snapshot_goes_first() -> None:
    engine = make_engine(num_snapshots=2)
    for name, token in (("a", 1), ("b", 2), ("a again", 1), ("c", 3)):
        chunks(engine, name, [token] * 9)
    assert [chunks(engine, f"last {token}", [token] * 9)[0] for token in (1, 3, 2)] == [8, 8, 0]
    assert engine.scheduler.stats().states.evicted == 2
    check_tokens(engine)


def test_slots_of_a_step_are_not_given_away_by_it() -> None:
    snapshots = Snapshots(2)
    first, second = snapshots.add(b"a", 1), snapshots.add(b"b", 1)
    assert {first, second} == {0, 1} and snapshots.add(b"c", 1) == NO_SLOT
    assert snapshots.use(b"a", 2) == first and snapshots.add(b"c", 2) == second
    assert b"b" not in snapshots and snapshots.use(b"b", 3) == NO_SLOT and snapshots.num_evicted == 1
    snapshots.drop(b"a")
    assert snapshots.add(b"d", 3) == first and len(snapshots) == 2
    snapshots.clear()
    assert len(snapshots) == 0 and {snapshots.add(b"e", 3), snapshots.add(b"f", 3)} == {0, 1}
    assert Snapshots(0).add(b"a", 1) == NO_SLOT


def test_the_ends_of_prompts_are_forgotten_first() -> None:
    seen = SeenPrefixes(3)
    seen.add([b"a", b"b", b"c"])
    assert seen.count([b"a", b"b", b"x"]) == 2
    seen.add([b"a", b"d"])
    assert (seen.count([b"a", b"b", b"c"]), seen.count([b"a", b"d"])) == (2, 2)
    assert SeenPrefixes(1).count([b"a"]) == 0


def test_no_prompt_is_cut_within_what_is_computed_at_once() -> None:
    """A picture whose tokens see each other, say."""
    feature = StateSnapshots(Snapshots(4), SIZE, least_gain=1)
    request = make_request("a", list(range(23)), 2)
    engine = make_engine()
    engine.add(request)
    state = engine.scheduler._requests["a"]
    state.blocks = RequestBlocks(0, state.blocks.root, spans=[KeysSpan(6, 21, "9f", whole=True)])
    assert feature._ends_of(state, 0) == [4]

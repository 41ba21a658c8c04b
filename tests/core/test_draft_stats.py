"""Sums over runs, against counting draft by draft."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cadence.core.contract.codec import answer_of, answer_to, call_of, decode_from_engine, encode
from cadence.core.contract.control import STATE
from cadence.core.contract.engine_state import EngineState, EngineStats
from cadence.core.contract.messages import FromEngine
from cadence.core.contract.update import RequestUpdate
from cadence.core.draft_stats import NO_DRAFTS, DraftStats, Run, first_runs, kept_places

# A forward brings its own token, or ends before it does, after as many drafts as were right.
RUNS = st.lists(st.integers(0, 5).flatmap(lambda k: st.tuples(st.just(k), st.integers(0, k + 1))), max_size=6)


def test_by_hand() -> None:
    stats = NO_DRAFTS.add([(0, 1), (4, 5), (4, 1), (2, 2)])
    assert stats.num_forwards == 3
    assert stats.drafted_by_position == (3, 3, 2, 2) and stats.accepted_by_position == (2, 1, 1, 1)
    assert (stats.num_drafted, stats.num_accepted, stats.acceptance_rate) == (10, 5, 0.5)
    assert stats.mean_length == 1 + 5 / 3


def test_nothing() -> None:
    assert NO_DRAFTS.add([]) is NO_DRAFTS and NO_DRAFTS.add([(0, 1), (0, 1)]) is NO_DRAFTS
    assert (NO_DRAFTS.acceptance_rate, NO_DRAFTS.mean_length) == (0.0, 1.0)


@given(RUNS, RUNS)
def test_any_runs(first: list[Run], then: list[Run]) -> None:
    found = NO_DRAFTS.add(first).add(then)
    runs = [(drafts, max(came - 1, 0)) for drafts, came in first + then if drafts]
    width = max((drafts for drafts, _ in runs), default=0)
    assert found.num_forwards == len(runs)
    assert found.drafted_by_position == tuple(sum(i < drafts for drafts, _ in runs) for i in range(width))
    assert found.accepted_by_position == tuple(sum(i < kept for _, kept in runs) for i in range(width))
    flags = [i < min(came - 1, drafts) for drafts, came in first + then for i in range(came)]
    assert kept_places(first + then) == [place for place, kept in enumerate(flags) if kept]
    assert found == NO_DRAFTS.add(first + then) == NO_DRAFTS.add(then).plus(NO_DRAFTS.add(first))


@given(RUNS)
def test_what_is_left_of_runs(runs: list[Run]) -> None:
    """When only some of the tokens stand, drafts among these are what was kept, and none of a later forward count."""
    came = sum(tokens for _, tokens in runs)
    assert kept_places(first_runs(runs, came)) == kept_places(runs)
    for count in range(came):
        left = first_runs(runs, count)
        assert kept_places(left) == [place for place in kept_places(runs) if place < count]
        assert NO_DRAFTS.add(left).num_accepted == len(kept_places(left))
        assert [drafts for drafts, _ in left] == [drafts for drafts, _ in runs[: len(left)]]


def test_runs_and_sums_cross_between_processes() -> None:
    update = RequestUpdate("r", [1, 2, 3], (), (), None, None, 0, 0, 0.0, runs=((4, 3), (0, 1)))
    stats = EngineStats(drafts=DraftStats(2, (2, 1), (1, 0)))
    answer = answer_to(call_of(STATE, False), EngineState(stats=stats))
    found = decode_from_engine(encode(FromEngine(updates=[update], answer=answer)))
    assert [tuple(run) for run in found.updates[0].runs] == [(4, 3), (0, 1)]
    assert found.answer is not None and answer_of(STATE, found.answer).stats.drafts == stats.drafts
    plain = RequestUpdate("r", [1], (), (), None, None, 0, 0, 0.0)
    assert not decode_from_engine(encode(FromEngine(updates=[plain]))).updates[0].runs

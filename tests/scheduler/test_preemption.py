"""When blocks run out: who loses its row, who waits, and that nobody loses a token."""

from __future__ import annotations

import pytest

from tests.helpers.toy_engine import begun, check_tokens, make_engine
from tests.helpers.toy_model import make_request, work


def test_youngest_is_preempted_and_resumes_with_what_it_had() -> None:
    engine = make_engine(num_blocks=11, caching=False)
    for name in "abc":
        engine.add(make_request(name, [ord(name)] * 10, 30))
    ended, resumed = [], []
    while engine.scheduler.has_unfinished():
        rows = {row: state.request_id for row, state in engine.device.rows.items()}
        plan = engine.step()
        ended += [rows[row] for row in plan.ended]
        resumed += [new for new in plan.begun if len(new.token_ids_np) > 10]
    a, b, c = engine.outcomes.values()
    assert ended[:2] == ["c", "b"] and resumed[0].request_id == "b"
    assert a.preemptions == 0 < b.preemptions <= c.preemptions
    assert engine.scheduler.stats().num_preemptions == b.preemptions + c.preemptions == len(resumed)
    assert all(new.prompt_len == 10 and new.num_computed == 0 for new in resumed)
    check_tokens(engine)


@pytest.mark.parametrize("depth", [1, 2])
def test_priority_decides_who_is_admitted_and_who_is_preempted(depth: int) -> None:
    engine = make_engine(num_blocks=11, policy="priority", steps_in_flight=depth, max_num_batched_tokens=40)
    for name, priority in (("low", 5), ("high", 0), ("mid", 2)):
        engine.add(make_request(name, [priority] * 9, 25, priority=priority))
    assert begun(engine.step()) == ["high", "mid", "low"]
    engine.drain()
    assert engine.outcomes["high"].preemptions == 0 < engine.outcomes["low"].preemptions
    check_tokens(engine)


def test_equal_priorities_are_served_by_arrival() -> None:
    engine = make_engine(policy="priority", max_num_batched_tokens=40)
    engine.add(make_request("late", [1], 2, arrival_time=5.0))
    engine.add(make_request("early", [1], 2, arrival_time=1.0))
    assert begun(engine.step()) == ["early", "late"]


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    engine = make_engine(num_blocks=11)
    engine.add(make_request("a", [1] * 16, 20))
    engine.add(make_request("b", [2] * 8, 20))
    engine.add(make_request("c", [3] * 8, 20))
    preemptions = 0
    while engine.scheduler.has_unfinished():
        plan = engine.step()
        if engine.scheduler.stats().num_preemptions > preemptions:
            preemptions = engine.scheduler.stats().num_preemptions
            assert not plan.begun
    assert preemptions
    check_tokens(engine)


def test_blocks_in_flight_save_others_from_preemption() -> None:
    """b's blocks come back with the step in flight: a waits for them, and c keeps its row."""
    engine = make_engine(num_blocks=11, steps_in_flight=2, caching=False, max_num_batched_tokens=40)
    engine.add(make_request("a", [1] * 16, 20))
    engine.add(make_request("b", [2] * 12, 20))
    engine.add(make_request("c", [3] * 9, 3))
    engine.launch()
    engine.abort(["b"])
    engine.add(make_request("d", [4], 1))
    assert [entry[1:] for entry in work(engine.launch())] == [(1, 9, True)], "a sits out, d is not admitted"
    assert engine.scheduler.stats().num_preemptions == 0
    engine.settle()
    plan = engine.launch()
    assert begun(plan) == ["d"] and len(plan.rows_np) == 3, "a goes on"


def test_blocks_an_older_request_waits_for_are_not_taken_by_a_younger() -> None:
    limits = {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 8, "steps_in_flight": 2}
    engine = make_engine(num_blocks=11, caching=False, **limits)
    for name, length in (("a", 24), ("b", 3), ("c", 12), ("d", 1)):
        engine.add(make_request(name, [1] * length, 9))
    engine.launch()
    engine.launch()
    engine.settle()
    engine.abort(["c"])  # gives three blocks back when the second step returns
    third = engine.launch()  # one block is free, a needs two, b one, d none
    assert [engine.device.rows[row].request_id for row in third.rows_np.tolist()] == ["d"]
    engine.settle()
    assert [len(new.block_ids) for new in engine.launch().blocks] == [2, 1]
    assert engine.scheduler.stats().num_preemptions == 0


def test_preempted_request_takes_its_token_in_flight() -> None:
    engine = make_engine(num_blocks=11, steps_in_flight=2, caching=False, max_num_batched_tokens=40)
    engine.add(make_request("a", [1] * 19, 15))
    engine.add(make_request("b", [2] * 19, 15))
    engine.launch()
    engine.launch()
    engine.settle()
    engine.launch()  # both need a sixth block
    assert engine.scheduler.stats().num_preemptions == 1
    assert len(engine.outcomes["b"].tokens) == 1
    engine.settle()
    assert len(engine.outcomes["b"].tokens) == 2, "the token of the step in flight is not lost"
    engine.drain()
    check_tokens(engine)
    for count in range(2):  # what waits is counted rightly again: exactly two prompts of 20 fill a step of 40
        assert not engine.scheduler.fills_step()
        engine.add(make_request(f"later {count}", [3] * 20, 2))
    assert engine.scheduler.fills_step()

"""Plans of several forwards: what is booked, what comes back, what is given up."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest

from cadence.core.contract.request import FinishReason, StopRule
from cadence.core.contract.step import NO_TOKEN, StepPlan
from cadence.core.failure import Failure, FailureCode
from cadence.core.sampling_params import SamplingParams
from cadence.scheduler.budget import TokenBudget
from cadence.scheduler.burst import BurstPolicy, needs_host
from cadence.scheduler.decode_times import DecodeTimes
from cadence.scheduler.features.host_bound import HostBound
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import begun, check_tokens, make_cache, make_config, make_engine, result_of
from tests.helpers.toy_model import make_layout, make_request, work

FULL = make_layout((0,), 4)
STOP = StopRule(frozenset({5}), frozenset(), 0, 20)


def make_scheduler(num_blocks: int = 60, host_bound: bool = False, **config: object) -> Scheduler:
    config = {"burst_steps": 4, "max_num_batched_tokens": 40} | config
    return Scheduler(make_config(**config), make_cache(4), FULL, num_blocks, 40, [HostBound()] if host_bound else [])


def booked(scheduler: Scheduler, row: int = 0) -> tuple[int, int]:
    """(tokens, computed tokens) of a row once all plans have run."""
    return int(scheduler._rows.length_np[row]), int(scheduler._rows.computed_np[row])


def part(scheduler: Scheduler, plan: StepPlan, *tokens: int | list[int], **extra: object) -> list[object]:
    updates = scheduler.update(result_of(plan, *tokens, **extra))
    return [(update.request_id, update.new_token_ids, update.finish_reason) for update in updates]


def cut(scheduler: Scheduler, plan: StepPlan, num_run: int) -> None:
    """So many forwards of it were asked for, and no more will be."""
    step = scheduler.in_flight(plan.step_id)
    step.num_queued = num_run
    scheduler.cut(step)


def wants_cut(scheduler: Scheduler, plan: StepPlan) -> bool:
    return scheduler.wants_cut(scheduler.in_flight(plan.step_id))


# What is booked


def test_a_prompt_joins_the_burst_as_a_decode() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", list(range(6)), 12))
    plan = scheduler.schedule()
    assert (plan.num_forwards, work(plan), booked(scheduler)) == (4, [(0, 6, 0, True)], (10, 9))
    assert [len(new.block_ids[0]) for new in plan.begun] == [2]
    assert [(new.row, new.start, len(new.block_ids)) for new in plan.blocks] == [(0, 2, 1)], "9 tokens are computed"
    assert part(scheduler, plan, 1, 2, 3, 4) == [("a", [1, 2, 3, 4], None)]
    assert work(scheduler.schedule()) == [(0, 1, 9, True)] and booked(scheduler) == (14, 13)


def test_no_block_is_taken_beyond_the_last_token() -> None:
    scheduler = make_scheduler(steps_in_flight=2)
    scheduler.add(make_request("short", [1, 2], 3))
    scheduler.add(make_request("long", [1, 2], 6))
    assert scheduler.schedule().num_forwards == 4
    assert (booked(scheduler, 0), booked(scheduler, 1)) == ((6, 5), (6, 5)), "one will have ended"
    assert scheduler._rows.capacity_np[:2].tolist() == [4, 8], "the last token, here the fifth, is never computed"
    second = scheduler.schedule()
    assert (second.num_forwards, work(second), booked(scheduler, 1)) == (2, [(1, 1, 5, True)], (8, 7))
    assert not len(scheduler.schedule().rows_np)


def test_a_row_in_the_middle_of_its_prompt_takes_part_in_the_first_forward_only() -> None:
    scheduler = make_scheduler(max_num_batched_tokens=8)
    scheduler.add(make_request("old", [1, 2], 20))
    part(scheduler, scheduler.schedule(), 7, 7, 7, 7)
    scheduler.add(make_request("new", list(range(20)), 2))
    plan = scheduler.schedule()
    assert (plan.num_forwards, work(plan)) == (4, [(0, 1, 5, True), (1, 7, 0, False)])
    assert booked(scheduler, 1) == (20, 7)
    part(scheduler, plan, 7)
    assert scheduler._rows.confirmed_np[:2].tolist() == [6, 7]
    part(scheduler, plan, 7, 7, 7)
    assert scheduler._rows.confirmed_np[:2].tolist() == [9, 7]


@pytest.mark.parametrize(("num_rows", "prompt_len", "num_forwards"), [(2, 13, 8), (2, 15, 4), (3, 11, 2), (3, 12, 1)])
def test_a_burst_shrinks_to_the_free_blocks(num_rows: int, prompt_len: int, num_forwards: int) -> None:
    scheduler = make_scheduler(num_blocks=12, burst_steps=8)  # 11 blocks of 4
    for number in range(num_rows):
        scheduler.add(make_request(f"r{number}", [number] * prompt_len, 20))
    plan = scheduler.schedule()
    assert (len(plan.rows_np), plan.num_forwards, scheduler.stats().num_preemptions) == (num_rows, num_forwards, 0)
    part(scheduler, plan, *[7] * num_forwards)
    assert all(len(scheduler.schedule().rows_np) for _ in range(2)), "later plans preempt, as they do without bursts"


@pytest.mark.parametrize(("prompt_len", "num_forwards"), [(4, 1), (3, 2)])
def test_blocks_claimed_by_a_row_that_sits_out_are_not_spent_on_a_burst(prompt_len: int, num_forwards: int) -> None:
    """a waits for the blocks of c, which are in flight: one block is free, but not for d, who may need a third."""
    limits = {"max_num_batched_tokens": 24, "long_prefill_token_threshold": 8, "steps_in_flight": 2, "burst_steps": 2}
    engine = make_engine(num_blocks=12, caching=False, **limits)
    for name, length in (("a", 24), ("c", 12), ("d", prompt_len)):
        engine.add(make_request(name, [1] * length, 9))
    engine.launch()
    engine.launch()
    engine.settle()
    assert engine.scheduler._kv.num_free == 1
    engine.abort(["c"])
    third = engine.launch()
    assert [engine.device.rows[row].request_id for row in third.rows_np.tolist()] == ["d"]
    assert third.num_forwards == num_forwards
    engine.drain()
    assert engine.outcomes["a"].preemptions == 0


def test_the_window_of_a_burst_in_flight_counts() -> None:
    config = make_config(burst_steps=7, steps_in_flight=2, max_num_batched_tokens=16)
    assert TokenBudget.of(config, 40).in_flight == 2 * (16 + 6)


# How long


def lengths(policy: BurstPolicy, *cases: tuple[int, int, bool]) -> list[int]:
    return [policy.wanted(*case) for case in cases]


def test_explicit_bursts_are_as_long_as_asked_for() -> None:
    policy = BurstPolicy(make_config(burst_steps=7), DecodeTimes())
    assert lengths(policy, (1, 99, True), (64, 7, False), (1, 5, True), (1, 4, True), (1, 1, True)) == [7, 7, 7, 4, 1]


def test_automatic_bursts_fit_into_their_time() -> None:
    decodes = DecodeTimes()
    policy = BurstPolicy(make_config(burst_steps=8, burst_seconds=0.01), decodes)
    assert lengths(policy, (4, 99, True)) == [1], "nothing was measured"
    decodes.observe(num_rows=4, num_forwards=2, seconds=0.005)
    assert lengths(policy, (4, 99, True), (7, 99, True), (8, 99, True)) == [4, 4, 1], "8 rows were not measured"
    assert lengths(policy, (4, 99, False), (4, 2, True), (4, 1, True)) == [1, 2, 1]
    for _ in range(9):
        decodes.observe(num_rows=4, num_forwards=1, seconds=0.001)
    assert lengths(policy, (4, 99, True)) == [8]
    decodes.observe(num_rows=4, num_forwards=1, seconds=0.004)
    assert lengths(policy, (4, 99, True)) == [4], "0.001 + (0.004 - 0.001) / 8 = 0.0014"
    unlimited = BurstPolicy(make_config(burst_steps=15, burst_seconds=math.inf), DecodeTimes())
    assert lengths(unlimited, (4, 99, True), (4, 99, False)) == [8, 1]


def test_automatic_bursts_begin_when_nobody_waits_and_all_decode() -> None:
    engine = make_engine(burst_steps=4, burst_seconds=math.inf, max_num_seqs=2)
    engine.add(make_request("a", list(range(20)), 9))
    engine.add(make_request("b", [1], 3))
    assert [engine.step().num_forwards for _ in range(3)] == [1, 1, 4], "16 tokens, then the rest and b, then decodes"
    engine.add(make_request("c", [2], 3))  # b has ended
    engine.add(make_request("d", [3], 3))
    assert [engine.step().num_forwards for _ in range(2)] == [1, 1], "d waits"
    engine.drain()
    check_tokens(engine)


def test_measured_plans_are_decodes_that_were_not_cut() -> None:
    scheduler = make_scheduler(burst_seconds=1.0)

    def run(seconds: float, num_run: int = 0) -> int:
        plan = scheduler.schedule()
        if num_run:
            cut(scheduler, plan, num_run)
        part(scheduler, plan, *[7] * (num_run or plan.num_forwards))
        scheduler.observe_time(plan, seconds)
        return plan.num_forwards

    scheduler.add(make_request("a", [1, 2], 30))
    assert run(0.1) == 1, "a prompt says nothing of decodes"
    assert [run(0.4), run(0.8), run(0.01, num_run=1), run(0.8), run(0.1, num_run=2), run(0.1)] == [1, 2, 2, 2, 2, 4]


def test_what_the_host_decides_makes_a_plan_one_forward_long() -> None:
    on_device = SamplingParams(logits_processors=[max])
    on_device.logits_processors = [SimpleNamespace(on_device=True)]  # type: ignore[list-item]
    host = SamplingParams(logits_processors=[max])
    assert [needs_host(sampling) for sampling in (SamplingParams(), on_device, host)] == [False, False, True]
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1], 20, params=on_device))
    plan = scheduler.schedule()
    assert plan.num_forwards == 4
    part(scheduler, plan, 7, 7, 7, 7)
    scheduler.add(make_request("b", [1], 1, params=host))
    plan = scheduler.schedule()
    assert plan.num_forwards == 1
    part(scheduler, plan, 7)
    assert scheduler.schedule().num_forwards == 4, "the row was b's"
    engine_wide = make_scheduler(host_bound=True)
    engine_wide.add(make_request("a", [1], 20))
    assert engine_wide.schedule().num_forwards == 1


# What comes back


def test_tokens_come_in_parts() -> None:
    scheduler = make_scheduler(max_num_seqs=2)
    scheduler.add(make_request("a", [1, 2, 3], 20, stop=STOP))
    scheduler.add(make_request("b", [1, 2], 20, stop=STOP))
    plan = scheduler.schedule()
    assert part(scheduler, plan, [7, 8]) == [("a", [7], None), ("b", [8], None)]
    assert scheduler._rows.known_np.tolist() == [4, 3] and scheduler._rows.confirmed_np.tolist() == [3, 2]
    a_ends = part(scheduler, plan, [5, 6], [NO_TOKEN, 6])
    assert a_ends == [("a", [5], FinishReason.STOP), ("b", [6, 6], None)], "one update each"
    assert scheduler._rows.num_free == 0, "the row is named by a plan that has not returned"
    assert part(scheduler, plan, [NO_TOKEN, 9]) == [("b", [9], None)]
    assert scheduler._rows.num_free == 1
    assert scheduler._rows.known_np[1] == 6


def test_tokens_after_a_stop_are_dropped() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1], stop=StopRule(frozenset(), frozenset({5}), 2, 20)))
    plan = scheduler.schedule()
    assert part(scheduler, plan, 5, 5, 6, 6) == [("a", [5, 5], FinishReason.STOP)], "two tokens at least"
    assert not scheduler._kv._pool.index.by_group[0], "four tokens were computed, two of them nobody's"


def test_what_ends_by_its_length_ends_in_mid_burst() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("a", [1], 3))
    plan = scheduler.schedule()
    assert part(scheduler, plan, 7, 8, 9, NO_TOKEN) == [("a", [7, 8, 9], FinishReason.LENGTH)]
    assert not scheduler.has_unfinished()


def test_a_row_that_fails_keeps_what_it_had() -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("bad", [1, 2, 3], 20))
    scheduler.add(make_request("done", [1, 2], 20, stop=STOP))
    plan = scheduler.schedule()
    errors = {row: Failure(FailureCode.BAD_LOGITS, "not a number") for row in (0, 1)}
    news = part(scheduler, plan, [7, 7], [8, 5], [NO_TOKEN, NO_TOKEN], errors=errors)
    assert news == [("bad", [7, 8], FinishReason.ERROR), ("done", [7, 5], FinishReason.STOP)]
    assert part(scheduler, plan, NO_TOKEN, errors=errors) == []
    assert not scheduler.has_unfinished()
    assert not scheduler._kv._pool.index.by_group[0], "what it cached is not trusted"


def test_only_computed_tokens_are_cached() -> None:
    """A stop token is never computed, a token that another forward will compute may not be."""
    for prompt, expected in (([1, 2], [0, 0, 0]), ([1], [0, 0, 0]), ([1, 2, 3], [0, 0, 1])):
        scheduler = make_scheduler()
        scheduler.add(make_request("a", prompt, stop=STOP))
        plan = scheduler.schedule()
        cached = scheduler._kv._pool.index.by_group[0]
        counts = [len(cached)]
        part(scheduler, plan, 7)
        counts.append(len(cached))
        part(scheduler, plan, 5, NO_TOKEN, NO_TOKEN)
        assert [*counts, len(cached)] == expected, "prompt, 7 fill a block; the stop token would not be in it"


def test_the_block_its_last_computed_token_filled_is_cached() -> None:
    engine = make_engine(burst_steps=4)
    engine.add(make_request("a", [1, 2, 3], 6))
    engine.drain()
    tokens = [1, 2, 3, *engine.outcomes["a"].tokens]
    engine.add(make_request("b", [*tokens, 1], 2))
    engine.drain()
    assert engine.outcomes["b"].num_cached == 8, "9 tokens, 8 of them computed"
    check_tokens(engine)


def test_an_aborted_request_is_silent_for_the_rest_of_the_burst() -> None:
    engine = make_engine(burst_steps=4)
    engine.add(make_request("a", [1], 20))
    engine.launch()
    assert len(engine.settle(1)[0].new_token_ids) == 1
    engine.abort(["a"])
    assert engine.settle(1) == [] == engine.settle()
    assert not engine.scheduler.has_unfinished() and engine.scheduler.stats().kv_usage == 0.0


# What is given up


@pytest.mark.parametrize(("num_run", "expected"), [(1, ((3, 2), (3, 2))), (2, ((4, 3), (4, 3))), (3, ((5, 4), (5, 4)))])
def test_a_cut_burst_is_booked_as_far_as_it_runs(num_run: int, expected: tuple[tuple[int, int], ...]) -> None:
    scheduler = make_scheduler()
    scheduler.add(make_request("short", [1, 2], 2))  # has no use for more than two forwards
    scheduler.add(make_request("long", [1, 2], 20))
    plan = scheduler.schedule()
    cut(scheduler, plan, num_run)
    assert (booked(scheduler, 0), booked(scheduler, 1)) == expected
    part(scheduler, plan, *[[7, 8], [7, 8], [NO_TOKEN, 8]][:num_run])
    assert work(scheduler.schedule())[-1] == (1, 1, 1 + num_run, True), "goes on where it was cut"


def test_a_burst_of_which_all_that_ran_has_returned_is_over_when_it_is_cut() -> None:
    engine = make_engine(burst_steps=4, max_num_seqs=1)
    engine.add(make_request("a", [1], 8))
    engine.launch()
    engine.settle(2)
    engine.abort(["a"])
    engine.cut(2)
    assert not engine.in_flight and not engine.scheduler.has_unfinished()
    engine.add(make_request("b", [1], 8))
    assert begun(engine.step()) == ["b"]
    engine.drain()
    assert engine.outcomes["b"].finish == [(FinishReason.LENGTH, None)]


def test_only_what_can_be_given_up_is_cut() -> None:
    scheduler = make_scheduler(steps_in_flight=2)
    scheduler.add(make_request("a", [1], 20))
    first = scheduler.schedule()
    part(scheduler, first, 7, 7)
    second, step = scheduler.schedule(), scheduler.in_flight(first.step_id)
    with pytest.raises(ValueError, match="step 1 is not the newest"):
        cut(scheduler, first, 3)
    with pytest.raises(ValueError, match="step 2 is not the newest, has not begun"):
        cut(scheduler, second, 0)
    cut(scheduler, second, 1)
    part(scheduler, first, 7, 7)
    part(scheduler, second, 7)
    with pytest.raises(ValueError, match="or has returned"):
        scheduler.cut(step)


def test_a_cut_is_wanted_when_somebody_may_get_a_row_or_has_left_one() -> None:
    engine = make_engine(num_blocks=12, max_num_seqs=2, burst_steps=4)
    scheduler = engine.scheduler
    engine.add(make_request("a", [1] * 10, 30))
    plan = engine.step()
    plan = engine.launch()
    assert not wants_cut(scheduler, plan)
    engine.add(make_request("b", [2] * 10, 5))
    assert wants_cut(scheduler, plan), "a row is free"
    engine.settle()
    plan = engine.launch()
    engine.add(make_request("c", [3], 5))
    assert begun(plan) == ["b"] and not wants_cut(scheduler, plan), "no row is free"
    engine.settle(1)
    assert not wants_cut(scheduler, plan)
    engine.abort(["b"])
    assert wants_cut(scheduler, plan), "b has left"
    engine.settle()
    engine.abort(["c"])
    engine.add(make_request("d", [4] * 30, 5))
    plan = engine.launch()
    assert not plan.begun and not wants_cut(scheduler, plan), "d did not fit, and no block has come free"


def test_a_request_goes_on_from_burst_to_burst() -> None:
    engine = make_engine(burst_steps=4)
    engine.add(make_request("a", [1], 11))
    lengths = []
    while engine.scheduler.has_unfinished():
        lengths.append(engine.step().num_forwards)
    assert lengths == [4, 4, 4]
    check_tokens(engine)

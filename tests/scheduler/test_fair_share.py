"""Tenants share rows, blocks and tokens by their weights; one alone has all, in the order of its requests."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from cadence.core.contract.step import StepPlan
from tests.helpers.timed_world import TimedWorld, Timeline
from tests.helpers.toy_engine import ToyEngine, begun, check_tokens, make_engine
from tests.helpers.toy_model import make_request
from tests.helpers.wide import mostly_wide


def seconds(plan: StepPlan) -> float:
    """Of a device that takes a millisecond, and one for every 100 tokens."""
    return 0.001 + plan.total_tokens / 100_000


def world(**config: Any) -> TimedWorld:
    return TimedWorld(seconds, 0.0, **{"policy": "fair", "max_num_batched_tokens": 512, "max_num_seqs": 16} | config)


def first_token_s(line: Timeline) -> float:
    return line.token_times[0] - line.arrived


def flooded(num_prompts: int, prompt_len: int, **config: Any) -> tuple[TimedWorld, list[Timeline]]:
    """One tenant asks for many long prompts at once; then another comes with some of its own, now and then."""
    flood = world(**config)
    for _ in range(num_prompts):
        flood.arrive(0.0, prompt_len, 20, tenant="greedy")
    lines = [flood.arrive(0.5 + 0.4 * number, 400, 10, tenant="modest") for number in range(8)]
    flood.run()
    return flood, lines


def first_tokens_alone() -> list[float]:
    alone = world()
    lines = [alone.arrive(0.5 + 0.4 * number, 400, 10, tenant="modest") for number in range(8)]
    alone.run()
    return [first_token_s(line) for line in lines]


@pytest.mark.parametrize("depth", mostly_wide([1, 2], (2,)))
def test_a_thousand_long_prompts_of_one_hardly_delay_another(depth: int) -> None:
    """By at most as much again as it takes alone, and the steps that are under way when it comes."""
    under_way = depth * seconds_of(512)
    _, lines = flooded(1000, 3000, steps_in_flight=depth)
    for line, alone in zip(lines, first_tokens_alone(), strict=True):
        assert first_token_s(line) <= 2 * alone + under_way
    _, unfair = flooded(200, 3000, steps_in_flight=depth, policy="fcfs")
    assert first_token_s(unfair[0]) > 1.0, "in the order of arrival it waits for them all"


@pytest.mark.parametrize("depth", [1, 2])
def test_steps_are_short_while_another_tenant_may_ask(depth: int) -> None:
    """Readers would put up with 50 ms; from its second question on, a tenant waits for a quarter of that."""

    def waits(num_prompts: int) -> list[float]:
        paced = TimedWorld(seconds, 0.05, policy="fair", max_num_batched_tokens=8192, steps_in_flight=depth)
        for _ in range(num_prompts):
            paced.arrive(0.0, 6000, 20, tenant="greedy")
        lines = [paced.arrive(0.5 + 0.2 * number, 2000, 10, tenant="modest") for number in range(8)]
        paced.run()
        return [first_token_s(line) for line in lines]

    beside, alone = waits(300), waits(0)
    decodes = 0.002  # of the other's requests, at most
    assert max(beside[1:]) <= max(alone) + decodes + depth * (0.05 / 4 + decodes)


def test_tenants_that_have_had_about_as_much_share_steps() -> None:
    many = world(max_num_batched_tokens=8192)
    for number in range(12):
        many.arrive(0.0, 100, 4, tenant=f"tenant {number}")
    many.run()
    assert many.steps[0].prompt_tokens == 1200


def seconds_of(tokens: int) -> float:
    return 0.001 + tokens / 100_000


def test_rows_and_blocks_are_given_up_to_those_with_less_than_their_share() -> None:
    """All rows decode for a long time when another tenant comes: it gets one at once, and half of them if it asks."""
    engine = make_engine(num_blocks=200, policy="fair", max_num_seqs=4, max_num_batched_tokens=40)
    for number in range(6):
        engine.add(make_request(f"a{number}", [number] * 5, 30, tenant="a"))
    while len(engine.scheduler._running) < 4:
        engine.step()
    for number in range(3):
        engine.add(make_request(f"b{number}", [9, number], 30, tenant="b"))
    most = 0
    for _ in range(8):
        engine.step()
        running = Counter(request.request.tenant for request in engine.scheduler._running)
        most = max(most, running["b"])
    assert most == 2, "no more than its share is taken from others"
    engine.drain()
    check_tokens(engine)
    assert engine.scheduler.stats().num_preemptions == 2


def test_blocks_are_given_up_too() -> None:
    engine = make_engine(num_blocks=31, policy="fair", max_num_seqs=8, max_num_batched_tokens=40, caching=False)
    for number in range(3):
        engine.add(make_request(f"a{number}", [number] * 30, 10, tenant="a"))
    for _ in range(6):
        engine.step()
    engine.add(make_request("b", [7] * 20, 4, tenant="b"))
    while "b" not in begun(engine.step()):
        assert not any(outcome.finish for outcome in engine.outcomes.values()), "it does not wait for another's end"
    assert engine.scheduler.stats().num_preemptions == 1
    engine.drain()
    check_tokens(engine)


def served(engine: ToyEngine, steps: int) -> Counter[str]:
    """Prompt tokens that tenants got."""
    tokens: Counter[str] = Counter()
    for _ in range(steps):
        plan = engine.launch()
        for row, count in zip(plan.rows_np.tolist(), plan.num_tokens_np.tolist(), strict=True):
            tokens[engine.scheduler._rows.requests[row].request.tenant] += count
        engine.settle()
    return tokens


def test_tokens_are_shared_by_weight() -> None:
    engine = make_engine(num_blocks=400, max_model_len=60, policy="fair", max_num_seqs=8, max_num_batched_tokens=24)
    for number in range(60):
        engine.add(make_request(f"a{number}", [number] * 40, 1, tenant="a", weight=3.0))
        engine.add(make_request(f"b{number}", [number, 1] * 20, 1, tenant="b"))
    tokens = served(engine, 80)
    assert 2.6 <= tokens["a"] / tokens["b"] <= 3.4
    engine.drain()
    check_tokens(engine)


def test_who_was_away_does_not_save_up_and_owes_nothing() -> None:
    """What a tenant took while it was alone is not held against it, nor is its absence for it."""
    engine = make_engine(num_blocks=400, max_model_len=60, policy="fair", max_num_seqs=8, max_num_batched_tokens=24)
    for number in range(40):
        engine.add(make_request(f"alone{number}", [number] * 40, 1, tenant="a"))
    engine.drain()
    for number in range(60):
        engine.add(make_request(f"a{number}", [number] * 40, 1, tenant="a"))
        engine.add(make_request(f"b{number}", [number, 1] * 20, 1, tenant="b"))
    tokens = served(engine, 60)
    assert 0.85 <= tokens["a"] / tokens["b"] <= 1.15
    engine.drain()
    check_tokens(engine)


def test_one_tenant_is_served_in_order() -> None:
    plain, fair = (make_engine(num_blocks=60, policy=policy) for policy in ("fcfs", "fair"))
    for engine in (plain, fair):
        for number in range(9):
            engine.add(make_request(str(number), [number] * 7, 9, tenant="a"))
        engine.order = []  # type: ignore[attr-defined]
        while engine.scheduler.has_unfinished():
            engine.order += begun(engine.step())  # type: ignore[attr-defined]
    assert plain.order == fair.order  # type: ignore[attr-defined]

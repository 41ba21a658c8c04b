"""While streams wait, prompts take of a step only the time that is left: on a simulated clock."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import given

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan
from cadence.scheduler.decode_times import DecodeTimes
from cadence.scheduler.pace import PromptRoom
from cadence.scheduler.prompt_cost import PromptCost
from tests.helpers.timed_world import BLOCK, Costs, Step, TimedWorld
from tests.helpers.toy_engine import make_engine
from tests.helpers.toy_model import make_request, work
from tests.helpers.wide import examples, mostly_wide

CPU = Costs(step=0.004, row=0.001, token=0.001, pair=1e-6)  # 1,000 prompt tokens a second, half of it at 1,000
GPU = Costs(step=0.006, row=2e-5, token=2.3e-5, pair=1e-9)
LEARNING = 12  # steps with prompts


def prompt_sizes(world: TimedWorld) -> list[int]:
    """Prompt tokens of steps in which a row decodes."""
    return [step.prompt_tokens for step in world.steps if step.prompt_tokens and (step.plan.num_tokens_np == 1).any()]


def stream_and_long_prompt(world: TimedWorld, streams: bool = True) -> tuple[list[float], float]:
    """-> gaps of a request that is decoding when a prompt of 4,000 tokens comes, and when that gets its first token"""
    running = world.arrive(0.0, 20, 300, streams)
    long = world.arrive(0.5, 4000, 5)
    world.run()
    return running.gaps, long.token_times[0] - long.arrived


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("costs", "target", "floor"), [(CPU, 0.25, 16), (GPU, 0.06, 256)])
def test_a_long_prompt_holds_up_a_stream_no_longer_than_the_target(
    costs: Costs, target: float, floor: int, depth: int
) -> None:
    options = {"floor": floor, "steps_in_flight": depth, "max_num_batched_tokens": 8192}
    gaps, first = stream_and_long_prompt(TimedWorld(costs, target, **options))
    gaps_without, first_without = stream_and_long_prompt(TimedWorld(costs, 0.0, **options))
    assert max(gaps) <= target < max(gaps_without)
    assert first_without <= first <= 1.5 * first_without, "the stream had its tokens meanwhile"


def test_offline_requests_are_planned_as_without_the_option() -> None:
    worlds = [TimedWorld(CPU, target) for target in (0.25, 0.0)]
    for world in worlds:
        for number in range(8):
            world.arrive(0.1 * number, 400 * number + 1, 50, streams=False)
        world.run()
    paced, plain = ([work(step.plan) for step in world.steps] for world in worlds)
    assert paced == plain


def test_a_prompt_for_which_no_stream_waits_has_the_whole_step() -> None:
    world = TimedWorld(CPU, 0.25)
    world.arrive(0.0, 4000, 5)
    world.run()
    assert [step.prompt_tokens for step in world.steps[:2]] == [2048, 1952]


def test_only_prompts_that_go_on_are_cut_and_at_the_end_of_a_block() -> None:
    world = TimedWorld(CPU, 0.25)
    world.arrive(0.0, 20, 400)
    for length in (1003, 1500, 37, 700):
        world.arrive(1.0, length, 5)
    world.run()
    for step in world.steps:
        for row, count, computed, samples in work(step.plan):
            assert samples or (computed + count) % BLOCK == 0, (row, count, computed)


def test_decodes_go_before_a_prompt_that_is_more_urgent() -> None:
    engine = make_engine(
        policy="priority", max_num_batched_tokens=8, max_inter_token_seconds=1.0, num_blocks=60, max_num_seqs=3
    )
    for step in range(30):
        if step == 0:
            engine.add(_urgent("stream", 2, priority=1))
        elif step == 3:
            engine.add(_urgent("long", 30, priority=0))
        plan = engine.step()
        if 4 <= step <= 9:
            assert (plan.num_tokens_np == 1).any(), "the stream had no token"


def _urgent(name: str, prompt_len: int, priority: int) -> EngineRequest:
    return make_request(name, [1] * prompt_len, 36 - prompt_len, priority=priority)


def test_prompts_get_the_floor_where_decoding_alone_takes_longer_than_the_target() -> None:
    world = TimedWorld(Costs(step=0.4, token=0.001), 0.25)
    world.arrive(0.0, 20, 200)
    long = world.arrive(1.0, 1000, 2)
    world.run()
    assert set(prompt_sizes(world)[1:-1]) == {16} and long.ended


def test_without_chunks_prompts_stay_whole() -> None:
    world = TimedWorld(CPU, 0.25, max_model_len=2048, enable_chunked_prefill=False)
    world.arrive(0.0, 20, 100)
    long = world.arrive(0.2, 1500, 2)
    world.run()
    assert 1500 in prompt_sizes(world) and long.ended


def test_before_anything_is_measured_a_chunk_is_small() -> None:
    engine = make_engine(max_num_batched_tokens=30, max_inter_token_seconds=9.0, min_prompt_tokens=4)
    engine.add(_urgent("stream", 2, priority=0))
    engine.step()
    engine.add(_urgent("long", 30, priority=0))
    assert [entry[1] for entry in work(engine.step())] == [1, 8], "the toy engine tells no times"


# What is learned


class SlowAtFirst:
    """The first `count` steps with prompts take so many times as long: something is compiled."""

    def __init__(self, costs: Costs, count: int, factor: float) -> None:
        self.costs, self.left, self.factor = costs, count, factor

    def __call__(self, plan: StepPlan) -> float:
        if (plan.num_tokens_np > 1).any() and self.left:
            self.left -= 1
            return self.costs(plan) * self.factor
        return self.costs(plan)


@pytest.mark.parametrize("count", mostly_wide([1, 2, 4], [4]))
def test_first_launches_that_take_seconds_are_soon_forgotten(count: int) -> None:
    world = TimedWorld(SlowAtFirst(GPU, count, 200.0), 0.06, 256, max_num_batched_tokens=8192)
    world.arrive(0.0, 2000, 4000)
    for number in range(8):
        world.arrive(20.0 + number, 6000, 2)
    world.run()
    sizes = prompt_sizes(world)
    assert max(sizes[:20]) >= 1500, "about 2,000 fit into a step"
    gaps = [gap for line in world.lines.values() for gap in line.gaps]
    assert sum(gap > 0.06 for gap in gaps) <= count + 2


class Changing:
    """From a moment on all steps take so many times as long."""

    def __init__(self, costs: Costs, factor: float, after: float) -> None:
        self.costs, self.factor, self.after = costs, factor, after
        self.clock = 0.0

    def __call__(self, plan: StepPlan) -> float:
        seconds = self.costs(plan) * (self.factor if self.clock > self.after else 1.0)
        self.clock += seconds
        return seconds


@pytest.mark.parametrize("factor", mostly_wide([0.2, 0.5, 3.0, 6.0], [0.2, 6.0]))
def test_a_machine_that_becomes_slower_or_faster_is_followed(factor: float) -> None:
    costs = Changing(Costs(step=0.002, token=0.001, pair=1e-7), factor, after=6.0)
    world = TimedWorld(costs, 0.25)
    running = world.arrive(0.0, 20, 3000)
    for number in range(12):
        world.arrive(1.0 + 2 * number, 2000, 2)
    world.run()
    assert sum(gap > 0.25 for gap in running.gaps) <= 3, "two slow steps are believed"
    full = [step.seconds for step in world.steps if step.prompt_tokens >= 32][-20:-2]
    assert max(full) > 0.15, "and the time is used"


def test_noise_leaves_most_gaps_below_the_target() -> None:
    draw = random.Random(3)
    world = TimedWorld(lambda plan: GPU(plan) * draw.lognormvariate(0.0, 0.1), 0.06, 256, max_num_batched_tokens=8192)
    streams = [world.arrive(0.01 * number, 300, 800) for number in range(8)]
    for number in range(40):
        world.arrive(1.0 + 0.3 * number, 4000, 2)
    world.run()
    gaps = sorted(gap for line in streams for gap in line.gaps)
    assert gaps[int(0.97 * len(gaps))] <= 0.06 and gaps[-1] <= 0.08


def test_costs_by_tokens_pairs_and_step_are_told_apart() -> None:
    cost, draw = PromptCost(), random.Random(1)
    assert not cost.is_known and cost.tokens_within(1.0, 0) == 0
    for _ in range(300):
        tokens, context = draw.randrange(2, 2000), draw.randrange(20_000)
        pairs = tokens * (context + tokens / 2)
        cost.observe(tokens, pairs, 0.02 + 0.01 + 3e-5 * tokens + 2e-9 * pairs, 0.02)
    assert cost.fixed == pytest.approx(0.01, rel=0.05)
    tokens = cost.tokens_within(0.05, 10_000)
    assert 3e-5 * tokens + 2e-9 * tokens * (10_000 + tokens / 2) == pytest.approx(0.05, rel=0.02)


def test_room_is_shared_first_come_first_served() -> None:
    cost = PromptCost()
    cost.observe(1000, 1.0, 1.0, 0.0)  # a millisecond a token
    room = PromptRoom(tokens=2048, cost=cost, seconds=0.1, floor=16, block_size=16)
    assert [room.grant(30, 0), room.grant(500, 0), room.grant(5, 0)] == [30, 64, 0], "69 are left: 64 fill blocks"
    late = PromptRoom(tokens=2048, cost=cost, seconds=0.0, floor=16, block_size=16)
    assert [late.grant(10, 0), late.grant(500, 3), late.grant(5, 0)] == [10, 6, 0], "no time: the floor"


def test_decodes_are_estimated_by_about_as_many_rows() -> None:
    decodes = DecodeTimes()
    assert decodes.estimate(5) == 0.0
    decodes.observe(4, 2, 0.02)
    decodes.observe(64, 1, 0.08)
    assert [decodes.estimate(rows) for rows in (0, 1, 7, 9, 40, 500)] == [0.0, 0.01, 0.01, 0.01, 0.08, 0.08]
    decodes.bound(64, 0.05)
    decodes.bound(4, 0.05)
    assert [decodes.seconds(4), decodes.seconds(64)] == [0.01, 0.05], "more work took less time"


# Whatever comes


@st.composite
def worlds(draw: st.DrawFn) -> tuple[TimedWorld, Costs]:
    gpu = draw(st.booleans())
    rng = random.Random(draw(st.integers(0, 2**32)))
    if gpu:
        costs = Costs(
            rng.uniform(1e-3, 1e-2), rng.uniform(0, 4e-5), 10 ** rng.uniform(-5.3, -4.2), rng.uniform(0, 3e-9)
        )
        options = {"target": 0.06, "floor": 256, "max_num_batched_tokens": 8192, "max_num_seqs": 128}
    else:
        costs = Costs(rng.uniform(0, 1e-2), rng.uniform(0, 2e-3), 10 ** rng.uniform(-4, -2.7), rng.uniform(0, 1e-6))
        options = {"target": 0.25, "floor": 16, "max_num_batched_tokens": 2048, "max_num_seqs": 64}
    world = TimedWorld(costs, steps_in_flight=draw(st.sampled_from([1, 2])), **options)
    time, pauses = 0.0, draw(st.sampled_from([(0.0,), (0.0, 0.0, 0.1, 1.0), (0.5, 3.0)]))
    for _ in range(draw(st.integers(5, 30))):
        length = max(2, int(10 ** rng.uniform(0, draw(st.sampled_from([2.0, 3.9])))))
        world.arrive(time, length, rng.randint(1, 80), streams=rng.random() < 0.8)
        time += rng.choice(pauses)
    return world, costs


def stream_waits(world: TimedWorld, step: Step, owners: dict[int, str]) -> bool:
    """Whether a streaming request decodes in the step."""
    for new in step.plan.begun:
        owners[new.row] = new.request_id
    return any(
        world.streams(owners[row]) and computed >= world.prompt_len(owners[row])
        for row, _, computed, _ in work(step.plan)
    )


@given(worlds())
@examples(6, 30)
def test_no_stream_waits_longer_than_the_target_and_a_floor_chunk(case: tuple[TimedWorld, Costs]) -> None:
    """The device's times are exact here. What one step takes is the gap of every stream that it has a token for."""
    world, costs = case
    world.run()
    assert all(line.ended and len(line.token_times) == line.request.stop.max_tokens for line in world.lines.values())
    target, floor = world.config.max_inter_token_seconds, world.config.min_prompt_tokens
    learned, owners = 0, dict[int, str]()
    for step in world.steps:
        waits = stream_waits(world, step, owners)
        learned += step.prompt_tokens > 0
        if waits and step.prompt_tokens:
            bound = max(target, costs.decodes(step.plan)) + costs.floor_chunk(floor, step.plan)
            assert step.seconds <= bound * (1.1 if learned > LEARNING else 2.5), (learned, step.prompt_tokens)
            assert step.prompt_tokens >= min(floor, BLOCK) or (step.plan.num_samples_np > 0).all(), "no progress"

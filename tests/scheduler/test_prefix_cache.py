"""Who finds whose prefix in the cache."""

from __future__ import annotations

import pytest

from cadence.core.sampling_params import SamplingParams
from tests.helpers.toy_engine import check_tokens, make_engine
from tests.helpers.toy_model import make_request


def test_second_request_finds_the_first_ones_prefix_even_in_the_same_plan() -> None:
    engine = make_engine(max_num_batched_tokens=40)
    engine.add(make_request("a", list(range(10)), 2))
    engine.add(make_request("b", [*range(8), 20, 21], 2))
    plan = engine.step()
    assert [new.num_computed for new in plan.begun] == [0, 8]
    assert plan.begun[0].block_ids[0][:2] == plan.begun[1].block_ids[0][:2]
    engine.drain()
    assert engine.outcomes["b"].num_cached == 8
    stats = engine.scheduler.stats()
    assert (stats.prefix_queries, stats.prefix_hits, stats.kv_usage) == (20, 8, 0.0)
    check_tokens(engine)


@pytest.mark.parametrize(("length", "hit"), [(8, 4), (9, 8), (4, 0), (1, 0)])
def test_one_token_at_least_is_computed(length: int, hit: int) -> None:
    engine = make_engine()
    for name in "ab":
        engine.add(make_request(name, list(range(length)), 1))
        engine.drain()
    assert engine.outcomes["b"].num_cached == hit
    check_tokens(engine)


@pytest.mark.parametrize(
    "changes",
    [
        {"cache_salt": "mine"},
        {"params": SamplingParams(max_tokens=1, prompt_logprobs=0)},
        {"params": SamplingParams(max_tokens=1, skip_reading_prefix_cache=True)},
    ],
)
def test_requests_that_must_not_read_the_cache(changes: dict[str, object]) -> None:
    engine = make_engine()
    engine.add(make_request("a", list(range(9)), 1))
    engine.drain()
    engine.add(make_request("b", list(range(9)), 1, **changes))
    engine.drain()
    assert engine.outcomes["b"].num_cached == 0
    engine.add(make_request("c", list(range(9)), 1))
    engine.drain()
    assert engine.outcomes["c"].num_cached == 8


def test_generated_tokens_are_cached_too() -> None:
    engine = make_engine()
    engine.add(make_request("a", [1, 2, 3], 10))
    engine.drain()
    turn = [1, 2, 3, *engine.outcomes["a"].tokens, 5, 5]
    engine.add(make_request("b", turn, 3))
    engine.drain()
    assert engine.outcomes["b"].num_cached == 12
    check_tokens(engine)


def test_reset_prefix_cache_refuses_while_blocks_are_in_use() -> None:
    engine = make_engine()
    engine.add(make_request("a", list(range(9)), 2))
    engine.step()
    assert not engine.scheduler.reset_prefix_cache()
    assert engine.scheduler.reset_prefix_cache(reset_running_requests=True)
    assert engine.scheduler.stats(()).kv_usage == 0
    engine.drain()
    check_tokens(engine)
    assert engine.outcomes["a"].preemptions == 1
    assert engine.scheduler.reset_prefix_cache()
    engine.add(make_request("b", list(range(9)), 2))
    engine.drain()
    assert engine.outcomes["b"].num_cached == 0

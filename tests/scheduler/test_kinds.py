"""Groups of one model whose tables do not grow alike: a kind that takes its blocks once, beside full attention."""

from __future__ import annotations

import pytest

from cadence.core.contract.step import StepPlan
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.kv.sizing import blocks_needed, max_len_that_fits
from tests.helpers.toy_engine import ToyEngine, check_tokens, make_config
from tests.helpers.toy_kind import SOURCE, SOURCE_BLOCKS, with_source_kind
from tests.helpers.toy_model import make_layout, make_request

SIZE, MAX_LEN = 4, 28
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]


def engine_of(num_blocks: int = 60, windows: tuple[int, ...] = (SOURCE, 0), **config: object) -> ToyEngine:
    return ToyEngine(make_config(**config), make_layout(windows, SIZE), num_blocks, MAX_LEN)


def run(engine: ToyEngine) -> list[StepPlan]:
    """All plans until nothing is left to do, each carried out at once."""
    plans = []
    while engine.scheduler.has_unfinished():
        plans.append(engine.step())
    return plans


def test_each_group_grows_in_its_own_way() -> None:
    engine = engine_of()
    engine.add(make_request("a", [1, 2, 3], max_tokens=10))
    plans = run(engine)
    assert [len(ids) for ids in plans[0].begun[0].block_ids] == [SOURCE_BLOCKS, 1]
    assert [(added.group, added.start, len(added.block_ids)) for plan in plans for added in plan.blocks] == [
        (1, 1, 1),
        (1, 2, 1),
    ]
    check_tokens(engine)


@pytest.mark.parametrize("windows", [(SOURCE, 0), (SOURCE, 0, 5)])
@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_requests_get_their_blocks_again(windows: tuple[int, ...], depth: int) -> None:
    with with_source_kind():
        least = blocks_needed(make_layout(windows, SIZE), MAX_LEN, 16 * depth)
    engine = engine_of(least + SOURCE_BLOCKS, windows, steps_in_flight=depth)
    for number in range(4):
        engine.add(make_request(f"r{number}", [number, 1, 2], max_tokens=16))
    plans = run(engine)
    resumed = [new for plan in plans for new in plan.begun if len(new.token_ids_np) > new.prompt_len]
    assert resumed and all(len(new.block_ids[0]) == SOURCE_BLOCKS for new in resumed)
    check_tokens(engine)
    assert engine.scheduler.stats().kv_usage == 0.0


def test_a_prefix_hit_shares_what_is_cached_and_takes_the_rest_anew() -> None:
    engine = engine_of()
    engine.add(make_request("first", PROMPT, max_tokens=8))
    first = run(engine)[0].begun[0]
    engine.add(make_request("second", PROMPT, max_tokens=8))
    second = run(engine)[0].begun[0]
    assert second.num_computed == 2 * SIZE
    assert second.block_ids[1][:2] == first.block_ids[1][:2]
    assert len(set(second.block_ids[0])) == SOURCE_BLOCKS and not set(second.block_ids[0]) & set(second.block_ids[1])
    check_tokens(engine)


def test_bursts_count_the_groups_that_grow() -> None:
    """Of 13 blocks one request holds 5; a burst of 8 tokens needs 2 more of the group that grows alone."""
    engine = engine_of(14, burst_steps=8, max_num_seqs=2)
    for name in ("a", "b"):
        engine.add(make_request(name, PROMPT[:4], max_tokens=9))
    plan = engine.launch()
    assert plan.num_forwards == 8
    engine.settle()
    run(engine)
    check_tokens(engine)


def test_capacity_is_that_of_the_group_that_holds_the_fewest_tokens() -> None:
    with with_source_kind():
        manager = KVManager(make_layout((SOURCE, 0), SIZE), 20, caching=True, in_flight_tokens=8)
    blocks = manager.new_tables("")
    assert manager.capacity(blocks) == 0 and manager.num_growing == 1
    assert manager.blocks_to_grow(blocks, 5) == SOURCE_BLOCKS + 2
    assert [(group, start, len(ids)) for group, start, ids in manager.grow(blocks, 5)] == [(0, 0, 3), (1, 0, 2)]
    assert manager.capacity(blocks) == 8 and manager.blocks_to_grow(blocks, 8) == 0 == len(manager.grow(blocks, 8))
    assert [(group, start, len(ids)) for group, start, ids in manager.grow(blocks, 9)] == [(1, 2, 1)]


def test_a_pool_is_sized_by_all_kinds() -> None:
    layout = make_layout((SOURCE, 0), SIZE)
    with with_source_kind():
        assert blocks_needed(layout, 8, 4) == 1 + SOURCE_BLOCKS + 2
        assert max_len_that_fits(layout, 1 + SOURCE_BLOCKS + 2, 4, 100) == 8

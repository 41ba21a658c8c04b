"""Groups of one model whose tables do not grow alike: cross attention, which takes its blocks once, beside the rest."""

from __future__ import annotations

import pytest

from cadence.core.contract.request import FinishReason
from cadence.core.contract.step import StepPlan
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.encoder_input import ENCODER, EncoderInput
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.kv.sizing import blocks_needed, max_len_that_fits
from tests.helpers.toy_engine import ToyEngine, begun, check_tokens, make_config, make_engine
from tests.helpers.toy_model import make_layout, make_request
from tests.helpers.toy_source import MAX_SOURCE, SOURCE

SIZE, MAX_LEN = 4, 28
PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
TEXT = [3, 1, 4, 1, 5, 9, 2, 6, 5]  # three blocks, the last not full
OTHER = [2, 7, 1]


def engine_of(
    num_blocks: int = 60, windows: tuple[int, ...] = (SOURCE, 0), caching: bool = True, **config: object
) -> ToyEngine:
    limits = {"max_encoder_len": MAX_SOURCE, "max_num_encoder_tokens": MAX_SOURCE}
    return ToyEngine(make_config(**limits | config), make_layout(windows, SIZE), num_blocks, MAX_LEN, caching)


def add(engine: ToyEngine, name: str, source: list[int], prompt: list[int] = PROMPT, **fields: object) -> None:
    engine.add(make_request(name, prompt, attachments=(EncoderInput.of_tokens(source),), **fields))


def run(engine: ToyEngine) -> list[StepPlan]:
    """All plans until nothing is left to do, each carried out at once."""
    plans = []
    while engine.scheduler.has_unfinished():
        plans.append(engine.step())
    return plans


def encoded(plans: list[StepPlan]) -> list[list[int]]:
    """The contents that were encoded, in order."""
    return [work.token_ids_np.tolist() for plan in plans for work in plan.payloads.get(ENCODER, ())]


def test_blocks_of_cross_attention_are_taken_once_and_those_of_tokens_as_they_come() -> None:
    engine = engine_of()
    add(engine, "a", TEXT, [1, 2, 3], max_tokens=10)
    plans = run(engine)
    (new,) = plans[0].begun
    assert [len(ids) for ids in new.block_ids] == [3, 1] and new.payloads[ENCODER] == len(TEXT)
    (work,) = plans[0].payloads[ENCODER]
    assert (work.length, work.block_ids, work.adapter) == (len(TEXT), (new.block_ids[0], []), -1)
    assert [(added.group, added.start, len(added.block_ids)) for plan in plans for added in plan.blocks] == [
        (1, 1, 1),
        (1, 2, 1),
    ]
    assert encoded(plans) == [TEXT]
    check_tokens(engine)


@pytest.mark.parametrize("windows", [(SOURCE, 0), (SOURCE, SOURCE, 0)])
def test_requests_of_one_content_share_its_blocks_and_it_is_encoded_once(windows: tuple[int, ...]) -> None:
    engine = engine_of(windows=windows)
    for name, source in (("a", TEXT), ("b", TEXT), ("c", OTHER)):
        add(engine, name, source, [ord(name) % 7, 2])
    plan = engine.launch()
    a, b, c = plan.begun
    num_cross = windows.count(SOURCE)
    assert a.block_ids[:num_cross] == b.block_ids[:num_cross] and a.block_ids[-1] != b.block_ids[-1]
    assert not set(a.block_ids[0]) & set(c.block_ids[0])
    assert encoded([plan]) == [TEXT, OTHER]
    run(engine)
    add(engine, "later", TEXT, [6])
    assert encoded(run(engine)) == []
    check_tokens(engine)


def test_a_content_is_shared_only_with_requests_of_its_salt() -> None:
    engine = engine_of()
    add(engine, "a", TEXT)
    add(engine, "b", TEXT, cache_salt="pepper")
    first, second = run(engine)[:2]
    assert encoded([first, second]) == [TEXT, TEXT]
    assert not set(first.begun[0].block_ids[0]) & set(second.begun[0].block_ids[0])


def test_a_prefix_of_tokens_is_found_beside_a_source_or_without_it_and_never_under_another() -> None:
    engine = engine_of()
    add(engine, "first", TEXT)
    first = run(engine)[0].begun[0]
    add(engine, "again", TEXT)
    again = run(engine)[0].begun[0]
    assert again.num_computed == 2 * SIZE and again.block_ids[1][:2] == first.block_ids[1][:2]
    assert again.block_ids[0] == first.block_ids[0]
    add(engine, "other tokens", TEXT, [9, 9, 9, 9, 9, 9])
    fresh = run(engine)[0].begun[0]
    assert fresh.num_computed == 0 and fresh.block_ids[0] == first.block_ids[0]
    add(engine, "other source", OTHER)
    assert run(engine)[0].begun[0].num_computed == 0
    check_tokens(engine)


def test_a_source_of_which_a_block_was_evicted_is_encoded_again_as_a_whole() -> None:
    """Also where the prefix of tokens is still there."""
    engine = engine_of()
    add(engine, "first", TEXT)
    run(engine)
    pool = engine.scheduler._kv._pool
    listed = list(pool.index.by_group[0].values())
    pool.index.drop(listed[1])
    add(engine, "again", TEXT)
    plans = run(engine)
    assert encoded(plans) == [TEXT] and plans[0].begun[0].num_computed == 2 * SIZE
    add(engine, "and again", TEXT)
    assert encoded(run(engine)) == []
    check_tokens(engine)


def test_without_prefix_caching_requests_share_a_source_while_one_of_them_runs() -> None:
    engine = engine_of(caching=False)
    add(engine, "a", TEXT, max_tokens=3)
    add(engine, "b", TEXT, max_tokens=8)
    plans = [engine.step() for _ in range(5)]
    add(engine, "while b runs", TEXT, max_tokens=2)
    plans += run(engine)
    assert encoded(plans) == [TEXT]
    assert not any(engine.scheduler._kv._pool.index.by_group)
    add(engine, "later", TEXT)
    assert encoded(run(engine)) == [TEXT]
    check_tokens(engine)


def test_contents_beyond_the_budget_of_a_step_wait_for_the_next_in_order() -> None:
    engine = engine_of(max_num_encoder_tokens=len(TEXT) + 3)
    for name, source in (("a", TEXT), ("b", OTHER), ("c", [8, 8]), ("d", TEXT)):
        add(engine, name, source, [1, 2], max_tokens=2)
    first, second = engine.step(), engine.step()
    assert (begun(first), encoded([first])) == (["a", "b"], [TEXT, OTHER])
    assert (begun(second), encoded([second])) == (["c", "d"], [[8, 8]])
    run(engine)
    check_tokens(engine)


def test_one_content_is_encoded_in_every_step_however_small_the_budget() -> None:
    engine = engine_of(max_num_encoder_tokens=1)
    add(engine, "a", TEXT)
    add(engine, "b", OTHER)
    assert [encoded([engine.step()]) for _ in range(2)] == [[TEXT], [OTHER]]
    run(engine)
    check_tokens(engine)


@pytest.mark.parametrize("windows", [(SOURCE, 0), (SOURCE, 0, 5)])
@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_requests_find_their_source_again_or_have_it_encoded(windows: tuple[int, ...], depth: int) -> None:
    least = blocks_needed(make_layout(windows, SIZE), MAX_LEN, 16 * depth, MAX_SOURCE)
    engine = engine_of(least + 3, windows, steps_in_flight=depth)
    for number in range(4):
        add(engine, f"r{number}", [number, *TEXT], [number, 1, 2], max_tokens=16)
    plans = run(engine)
    resumed = [new for plan in plans for new in plan.begun if len(new.token_ids_np) > new.prompt_len]
    assert resumed and all(len(new.block_ids[0]) == 3 for new in resumed)
    assert len(encoded(plans)) >= 4
    check_tokens(engine)
    assert engine.scheduler.stats().kv_usage == 0.0


def test_a_request_that_is_preempted_at_once_finds_its_source_again() -> None:
    engine = engine_of()
    add(engine, "a", TEXT, max_tokens=8)
    plans = [engine.step() for _ in range(3)]
    engine.scheduler._preemption.preempt_all()
    plans += run(engine)
    assert encoded(plans) == [TEXT] and sum(len(plan.begun) for plan in plans) == 2
    check_tokens(engine)


def test_requests_with_a_source_can_be_aborted_wherever_they_are() -> None:
    engine = engine_of(max_num_encoder_tokens=1, steps_in_flight=2)
    for name in ("in flight", "shares", "waits"):
        add(engine, name, OTHER if name == "waits" else TEXT)
    engine.launch()
    engine.abort(["in flight", "waits"])
    engine.drain()
    assert engine.outcomes["waits"].finish == [(FinishReason.ABORT, None)]
    assert len(engine.outcomes["shares"].tokens) == 4
    assert engine.scheduler.stats().kv_usage == 0.0
    add(engine, "later", TEXT)
    assert encoded(run(engine)) == []


def test_after_a_failed_row_its_source_is_not_trusted() -> None:
    engine = engine_of()
    add(engine, "fails", TEXT)
    engine.step()
    engine.device.rows[0].fails = True
    run(engine)
    add(engine, "again", TEXT)
    assert encoded(run(engine)) == [TEXT]


def test_bursts_count_the_groups_that_grow() -> None:
    """Of 13 blocks one request holds 4; a burst of 8 tokens needs 2 more of the group that grows alone."""
    engine = engine_of(14, burst_steps=8, max_num_seqs=2)
    for name in ("a", "b"):
        add(engine, name, TEXT, PROMPT[:4], max_tokens=9)
    plan = engine.launch()
    assert plan.num_forwards == 8
    engine.settle()
    run(engine)
    check_tokens(engine)


def test_capacity_is_that_of_the_group_that_holds_the_fewest_tokens() -> None:
    manager = KVManager(make_layout((SOURCE, 0), SIZE), 20, caching=True, in_flight_tokens=8)
    blocks = manager.new_tables("", source_len=9)
    assert manager.capacity(blocks) == 0 and manager.num_growing == 1
    assert manager.blocks_to_grow(blocks, 5) == 3 + 2
    assert [(group, start, len(ids)) for group, start, ids in manager.grow(blocks, 5)] == [(0, 0, 3), (1, 0, 2)]
    assert manager.capacity(blocks) == 8 and manager.blocks_to_grow(blocks, 8) == 0 == len(manager.grow(blocks, 8))
    assert [(group, start, len(ids)) for group, start, ids in manager.grow(blocks, 9)] == [(1, 2, 1)]


def test_a_pool_is_sized_by_all_kinds() -> None:
    layout = make_layout((SOURCE, 0), SIZE)
    assert blocks_needed(layout, 8, 4, source_len=9) == 1 + 3 + 2
    assert max_len_that_fits(layout, 1 + 3 + 2, 4, 100, source_len=9) == 8


def test_time_that_encoding_took_is_not_taken_for_that_of_tokens() -> None:
    engine = engine_of()
    add(engine, "a", TEXT, [1])
    plan = engine.step()
    engine.scheduler.observe_time(plan, 100.0)
    assert engine.scheduler._decodes.estimate(1) == make_engine().scheduler._decodes.estimate(1)
    engine.scheduler.observe_time(engine.step(), 100.0)
    assert engine.scheduler._decodes.estimate(1) > 1.0


def test_a_model_without_an_encoder_refuses_a_source() -> None:
    with pytest.raises(InvalidRequestError, match="no encoder"):
        add(make_engine(), "a", TEXT)

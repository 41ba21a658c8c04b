"""What the scheduler promises, case by case. The toy engine checks every plan on the way."""

from __future__ import annotations

import numpy as np
import pytest

from cadence.core.contract.request import FinishReason, StopRule
from cadence.core.contract.step import NO_TOKEN, PromptLogprobs, TokenLogprobs
from cadence.core.errors import ConfigError, InvalidRequestError
from cadence.core.failure import Failure, FailureCode
from cadence.core.sampling_params import SamplingParams
from cadence.scheduler.scheduler import Scheduler
from tests.helpers.toy_engine import begun, check_tokens, make_cache, make_config, make_engine, result_of
from tests.helpers.toy_model import make_layout, make_request, work

FULL = make_layout((0,), 4)


def test_plans_are_differences() -> None:
    engine = make_engine()
    engine.add(make_request("a", list(range(6)), 12))
    first = engine.step()
    (row,) = first.begun
    assert row.token_ids_np.tolist() == list(range(6)) and row.max_len == 18 and row.prompt_len == 6
    assert work(first) == [(row.row, 6, 0, True)] and len(row.block_ids[0]) == 2
    plans = [engine.step() for _ in range(4)]
    assert [work(plan) for plan in plans] == [[(row.row, 1, 6 + n, True)] for n in range(4)]
    assert not any(plan.begun or plan.ended for plan in plans)
    assert [[(new.start, len(new.block_ids)) for new in plan.blocks] for plan in plans] == [[], [], [(2, 1)], []]
    assert all(column.dtype == np.int32 for column in (first.rows_np, first.num_tokens_np, first.num_computed_np))


def test_long_prompts_are_chunked_and_decodes_go_first() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add(make_request("old", [1, 2], 10))
    engine.step()
    engine.add(make_request("new", list(range(20)), 2))
    assert [[entry[1:] for entry in work(engine.step())] for _ in range(3)] == [
        [(1, 2, True), (7, 0, False)],
        [(1, 3, True), (7, 7, False)],
        [(1, 4, True), (6, 14, True)],
    ]


def test_rows_of_one_token_stand_before_prompts_and_the_longest_past_before_all() -> None:
    engine = make_engine(long_prefill_token_threshold=4)
    engine.add(make_request("long prompt", list(range(20)), 4))
    engine.add(make_request("short past", [1, 2], 10))
    engine.add(make_request("long past", [1, 2, 3, 4], 10))
    engine.step()
    assert [entry[1:] for entry in work(engine.step())] == [(1, 4, True), (1, 2, True), (4, 4, False)]
    engine.drain()
    check_tokens(engine)


def test_one_long_prompt_leaves_room_for_others_under_a_threshold() -> None:
    engine = make_engine(long_prefill_token_threshold=5)
    engine.add(make_request("long", list(range(20)), 2))
    engine.add(make_request("short", [1, 2, 3], 2))
    assert [entry[1] for entry in work(engine.step())] == [5, 3]


def test_without_chunking_a_prompt_waits_for_a_step_that_holds_it() -> None:
    engine = make_engine(max_num_batched_tokens=40, enable_chunked_prefill=False, long_prefill_token_threshold=5)
    engine.add(make_request("a", [1] * 30, 4))
    engine.add(make_request("b", [2] * 12, 4))
    engine.add(make_request("c", [3], 4))
    assert begun(engine.step()) == ["a"], "b does not fit, c does not overtake"
    assert begun(engine.step()) == ["b", "c"]
    engine.drain()
    check_tokens(engine)


def test_rows_limit_admission() -> None:
    engine = make_engine(max_num_seqs=2)
    for name in "abc":
        engine.add(make_request(name, [1, 2], 3))
    assert begun(engine.step()) == ["a", "b"]
    assert (engine.scheduler.stats().num_running, engine.scheduler.stats().num_waiting) == (2, 1)
    engine.step()
    engine.step()
    last = engine.step()
    assert begun(last) == ["c"] and sorted(last.ended) == [0, 1], "ended rows are free for the plan that says so"


def test_ended_rows_wait_for_a_plan_with_work() -> None:
    engine = make_engine()
    engine.add(make_request("a", [1], 1))
    engine.step()
    assert not engine.scheduler.has_unfinished()
    empty = engine.scheduler.schedule()
    assert not len(empty.rows_np) and empty.ended == []
    engine.add(make_request("b", [1], 1))
    assert engine.step().ended == [0]


# Steps in flight


def test_request_that_stopped_is_settled_late() -> None:
    scheduler = Scheduler(make_config(steps_in_flight=2, max_num_seqs=1), make_cache(4), FULL, 20, 40)
    scheduler.add(make_request("a", [1, 2], 9, stop=StopRule(frozenset({7}), frozenset(), 0, 9)))
    scheduler.add(make_request("b", [3], 1))
    first, second = scheduler.schedule(), scheduler.schedule()
    assert work(second) == [(0, 1, 2, True)], "goes on from a token the host does not know"
    (update,) = scheduler.update(result_of(first, 7))
    assert (update.new_token_ids, update.finish_reason) == ([7], FinishReason.STOP)
    assert not len(scheduler.schedule().rows_np), "the row is named by a step in flight"
    assert scheduler.update(result_of(second, 8)) == [], "the extra token is dropped"
    third = scheduler.schedule()
    assert (third.ended, begun(third), third.begun[0].row) == ([0], ["b"], 0)


def test_nothing_is_computed_beyond_the_last_token() -> None:
    engine = make_engine(steps_in_flight=2)
    engine.add(make_request("a", [1, 2], 2))
    assert [len(engine.launch().rows_np) for _ in range(3)] == [1, 1, 0]


def test_blocks_of_unknown_tokens_are_not_cached_before_they_are_known() -> None:
    scheduler = Scheduler(make_config(steps_in_flight=2), make_cache(4), FULL, 20, 40)
    scheduler.add(make_request("a", [1, 2, 3], 8))
    plans = [scheduler.schedule(), scheduler.schedule()]  # the second computes token 3, which is in flight
    cached = scheduler._kv._pool.index.by_group[0]
    assert not cached
    scheduler.update(result_of(plans[0]))
    assert not cached, "the token might have ended the request, and would not be computed"
    scheduler.add(make_request("b", [1, 2, 3, 7, 5], 1))
    (new,) = scheduler.schedule().begun
    assert len(cached) == 1 and new.num_computed == 4


# Ends


def finish_of(token: int, rule: StopRule, steps: int = 1, max_model_len: int = 40) -> list[object]:
    scheduler = Scheduler(make_config(), make_cache(4), FULL, 20, max_model_len)
    scheduler.add(make_request("a", [1, 2], rule.max_tokens, stop=rule))
    for _ in range(steps):
        plan = scheduler.schedule()
        (update,) = scheduler.update(result_of(plan, token))
    return [update.finish_reason, update.stop_reason]


def test_stop_rules() -> None:
    eos, ids, none = frozenset({5}), frozenset({6}), frozenset[int]()
    assert finish_of(5, StopRule(eos, ids, 0, 9)) == [FinishReason.STOP, None]
    assert finish_of(6, StopRule(eos, ids, 0, 9)) == [FinishReason.STOP, 6]
    assert finish_of(4, StopRule(eos, ids, 0, 9)) == [None, None]
    assert finish_of(6, StopRule(eos, ids, 3, 9), steps=2) == [None, None]
    assert finish_of(6, StopRule(eos, ids, 3, 9), steps=3) == [FinishReason.STOP, 6]
    assert finish_of(5, StopRule(eos, ids, 0, 1)) == [FinishReason.STOP, None], "the token says more than the length"
    assert finish_of(5, StopRule(none, none, 0, 3), steps=3) == [FinishReason.LENGTH, None]
    assert finish_of(5, StopRule(none, none, 0, 9), steps=3, max_model_len=5) == [FinishReason.LENGTH, None]


def test_abort_ends_waiting_and_running_requests_once() -> None:
    engine = make_engine(max_num_seqs=1)
    for name in "abc":
        engine.add(make_request(name, [1, 2], 5))
    engine.step()
    updates = engine.scheduler.abort(["a", "b", "nobody"])
    assert [(update.request_id, update.finish_reason) for update in updates] == [
        ("a", FinishReason.ABORT),
        ("b", FinishReason.ABORT),
    ]
    assert engine.scheduler.abort(["a", "b"]) == []
    assert begun(engine.step()) == ["c"]
    (update,) = engine.scheduler.abort(["c"], FinishReason.STOP)
    assert update.finish_reason is FinishReason.STOP
    assert not engine.scheduler.has_unfinished() and engine.scheduler.stats().kv_usage == 0.0


def test_an_error_ends_one_request_and_what_it_cached() -> None:
    scheduler = Scheduler(make_config(), make_cache(4), FULL, 20, 40)
    scheduler.add(make_request("good", [1] * 5, 5))
    scheduler.add(make_request("bad", [2] * 5, 5))
    plan = scheduler.schedule()
    failure = Failure(FailureCode.BAD_LOGITS, "logits are not numbers")
    result = result_of(plan, errors={1: failure})
    result.token_ids_np[0, 1] = NO_TOKEN
    updates = scheduler.update(result)
    assert {update.request_id: (update.new_token_ids, update.finish_reason) for update in updates} == {
        "good": ([7], None),
        "bad": ([], FinishReason.ERROR),
    }
    assert next(update.stop_reason for update in updates if update.request_id == "bad") is failure
    scheduler.add(make_request("again", [2] * 5, 5))
    assert [new.num_computed for new in scheduler.schedule().begun] == [0]


# Logprobs


def prompt_part(start: int, count: int) -> PromptLogprobs:
    ids_np = np.arange(start, start + count, dtype=np.int32)
    return PromptLogprobs(start, ids_np[:, None], np.zeros((count, 1), np.float32), np.ones(count, np.int32))


def test_logprobs_reach_the_request_they_belong_to() -> None:
    scheduler = Scheduler(make_config(), make_cache(4), FULL, 20, 40)
    scheduler.add(make_request("a", [1], 5))
    scheduler.add(make_request("b", [1], 5))
    plan = scheduler.schedule()
    logprobs = TokenLogprobs(np.array([7], np.int32), np.zeros(1, np.float32), 1)
    first, second = scheduler.update(result_of(plan, outputs=[(1, logprobs)]))
    assert (list(first.logprobs), list(second.logprobs)) == ([], [logprobs])


def test_prompt_logprobs_come_with_chunks_and_never_twice() -> None:
    scheduler = Scheduler(make_config(max_num_batched_tokens=4), make_cache(4, False), FULL, 11, 40)
    sampling = SamplingParams(max_tokens=5, prompt_logprobs=0)
    scheduler.add(make_request("a", list(range(10)), 5, params=sampling))
    reported: list[int] = []

    def step(start: int, count: int) -> None:
        plan = scheduler.schedule()
        for update in scheduler.update(result_of(plan, outputs=[(0, prompt_part(start, count))])):
            for part in update.prompt_logprobs:
                assert part.start == part.token_ids_np[0, 0]
                reported.extend(part.token_ids_np[:, 0].tolist())

    step(1, 4)  # a chunk of 4 tokens says something of the next 4
    scheduler._preemption.preempt(scheduler._running[-1])
    step(1, 4)
    step(3, 4)  # overlaps what was reported
    step(7, 3)
    assert reported == list(range(1, 10))


# Bad input


def test_requests_that_cannot_be_served_are_refused_by_name() -> None:
    engine = make_engine(max_model_len=8)
    engine.add(make_request("a", [1] * 7, 1))
    bad = (
        (make_request("a", [1], 1), "request_id"),
        (make_request("b", [], 1), "prompt_token_ids"),
        (make_request("b", [1] * 8, 1), "prompt_token_ids"),
        (make_request("b", [1], stop=StopRule(frozenset(), frozenset(), 0, 0)), "max_tokens"),
    )
    for request, field in bad:
        with pytest.raises(InvalidRequestError) as caught:
            engine.scheduler.add(request)
        assert caught.value.field == field
    engine.drain()
    check_tokens(engine)


def test_pool_must_hold_one_request_of_the_greatest_length() -> None:
    with pytest.raises(ConfigError, match="max_model_len=40"):
        make_engine(num_blocks=10)

"""Tokens that go by number: whatever a step brings arrives once, in order, as it would if each row had an update."""

from __future__ import annotations

import random

import msgspec
import numpy as np
import pytest

from cadence.core.contract.codec import decode_from_engine, encode
from cadence.core.contract.messages import FromEngine
from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.step import StepResult, TokenLogprobs
from cadence.core.contract.update import AnyUpdate, RequestTokens, RequestUpdate, TokenUpdates
from cadence.core.failure import Failure, FailureCode
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.supervise.journal import PROGRESS, Journal
from cadence.engine.text.request_text import RequestText
from cadence.scheduler.scheduler import Scheduler
from cadence.text.null_tokenizer import NullTokenizer
from tests.engine.updates import make_request
from tests.helpers.fake_engine import make_entry
from tests.helpers.toy_engine import make_cache, make_config, result_of
from tests.helpers.toy_model import make_layout

STOP = 9


def make_scheduler(**config: object) -> Scheduler:
    return Scheduler(make_config(**config), make_cache(4), make_layout((0,), 4), 60, 40)


def ask(scheduler: Scheduler, name: str, max_tokens: int = 8, **params: object) -> None:
    stop = StopRule(frozenset({STOP}), frozenset(), 0, max_tokens)
    scheduler.add(EngineRequest(name, [1, 2], SamplingParams(**params), stop, 0, 0.0))  # type: ignore[arg-type]


class Front:
    """Hears everything as a front does: through bytes and a journal."""

    def __init__(self, names: list[str]) -> None:
        self.journal = Journal(10.0)
        for name in names:
            self.journal.add(make_entry(name, 1, 100))
        self.journal.take_due(0.0, 100)
        self.tokens: dict[str, list[int]] = {name: [] for name in names}
        self.ends: dict[str, FinishReason] = {}
        self.num_by_number = 0

    def hear(self, updates: list[RequestUpdate], tokens: TokenUpdates) -> list[AnyUpdate]:
        message = decode_from_engine(encode(FromEngine(updates=updates, tokens=tokens)))
        found: list[AnyUpdate] = list(self.journal.record_tokens(message.tokens))
        self.num_by_number += len(found)
        found += [update for update in message.updates if self.journal.record(update)]
        for update in found:
            self.tokens[update.request_id] += update.new_token_ids
            if update.finish_reason is not None:
                self.ends[update.request_id] = update.finish_reason
        return found


def step(scheduler: Scheduler, *tokens: object, **extra: object) -> tuple[list[RequestUpdate], TokenUpdates]:
    updates = scheduler.update(result_of(scheduler.schedule(), *tokens, **extra))  # type: ignore[arg-type]
    return updates, scheduler.take_tokens()


def test_the_first_update_names_a_number_and_later_tokens_come_by_it() -> None:
    scheduler, front = make_scheduler(), Front(["a", "b"])
    ask(scheduler, "a")
    ask(scheduler, "b", max_tokens=3)
    updates, tokens = step(scheduler, [4, 5])
    assert [update.number for update in updates] == [1, 2] and not tokens
    front.hear(updates, tokens)
    updates, tokens = step(scheduler, [6, 7])
    assert not updates and list(tokens.each()) == [(1, [6]), (2, [7])] and not tokens.counts
    assert [type(update) for update in front.hear(updates, tokens)] == [RequestTokens, RequestTokens]
    updates, tokens = step(scheduler, [8, 8])
    assert [update.request_id for update in updates] == ["b"] and list(tokens.each()) == [(1, [8])]
    front.hear(updates, tokens)
    front.hear(*step(scheduler, [STOP]))
    assert front.tokens == {"a": [4, 6, 8, STOP], "b": [5, 7, 8]}
    assert front.ends == {"a": FinishReason.STOP, "b": FinishReason.LENGTH} and not front.journal._numbered


def test_who_does_not_ask_for_them_gets_updates_of_everything() -> None:
    scheduler = make_scheduler()
    ask(scheduler, "a")
    for token in (4, 5, 6):
        (update,) = scheduler.update(result_of(scheduler.schedule(), token))
        assert update.new_token_ids == [token]
    assert not scheduler.take_tokens()


def test_what_comes_with_more_than_tokens_comes_whole() -> None:
    scheduler = make_scheduler()
    for name in "abcd":
        ask(scheduler, name, logprobs=1 if name == "b" else None)
    step(scheduler, 4)
    entry = TokenLogprobs(np.array([5, 6]), np.array([-0.5, -1.0], np.float32), 1)
    failure = Failure(FailureCode.NO_TOKEN_LEFT, "none is left")
    updates, tokens = step(scheduler, [5, 5, 5, STOP], outputs=[(1, entry)], errors={2: failure})
    found = {update.request_id: update for update in updates}
    assert list(tokens.each()) == [(1, [5])] and sorted(found) == ["b", "c", "d"]
    assert found["b"].logprobs == (entry,) and found["b"].finish_reason is None
    assert found["c"].stop_reason == failure and found["c"].new_token_ids == [5]
    assert found["d"].finish_reason is FinishReason.STOP


def test_several_parts_in_one_message_keep_their_order() -> None:
    """The first update and the tokens after it may be taken together: then these are updates as well."""
    scheduler = make_scheduler(steps_in_flight=2)
    front = Front(["a"])
    ask(scheduler, "a")
    plans = [scheduler.schedule(), scheduler.schedule()]
    updates = [
        update for plan, token in zip(plans, (4, 5), strict=True) for update in scheduler.update(result_of(plan, token))
    ]
    front.hear(updates, scheduler.take_tokens())
    plan = scheduler.schedule()
    later = scheduler.update(result_of(plan, 6))
    later += scheduler.abort(["a"])
    front.hear(later, scheduler.take_tokens())
    assert front.tokens["a"] == [4, 5, 6] and front.ends["a"] is FinishReason.ABORT and front.num_by_number == 1


def test_a_preempted_request_is_told_of_again() -> None:
    config = {"max_num_seqs": 2, "max_num_batched_tokens": 32}
    scheduler = Scheduler(make_config(**config), make_cache(4, caching=False), make_layout((0,), 4), 8, 20)
    front = Front(["a", "b"])
    for name in "ab":
        ask(scheduler, name, max_tokens=15)
    most: dict[str, int] = {}
    while scheduler.has_unfinished():
        for update in front.hear(*step(scheduler, 4)):
            if isinstance(update, RequestUpdate):
                most[update.request_id] = update.num_preemptions
    assert {name: len(tokens) for name, tokens in front.tokens.items()} == {"a": 15, "b": 15}
    assert most["b"] > 0 and front.num_by_number > 10


@pytest.mark.parametrize("seed", range(8))
def test_random_steps_bring_the_same_by_number_and_without(seed: int) -> None:
    """Two schedulers get the same tokens; only one is asked for tokens by number, and not after every step."""
    draw, names = random.Random(seed), [f"r{number}" for number in range(6)]
    plain, by_number, front = (make_scheduler(burst_steps=3), make_scheduler(burst_steps=3), Front(names))
    for scheduler in (plain, by_number):
        for number, name in enumerate(names):
            ask(scheduler, name, max_tokens=4 + 3 * number, output_kind=RequestOutputKind.DELTA)
    expected: dict[str, list[int]] = {name: [] for name in names}
    held: list[RequestUpdate] = []
    while plain.has_unfinished() or held:
        plan = plain.schedule()
        if len(plan.rows_np):
            other = by_number.schedule()
            num_rows = int((plan.num_samples_np > 0).sum())
            forwards = [
                [draw.choice((*range(10, 30), STOP)) for _ in range(num_rows)] for _ in range(plan.num_forwards)
            ]
            for update in plain.update(result_of(plan, *forwards)):
                expected[update.request_id] += update.new_token_ids
            held += by_number.update(result_of(other, *forwards))
        if draw.random() < 0.6 or not plain.has_unfinished():
            front.hear(held, by_number.take_tokens())
            held = []
    assert front.tokens == expected and set(front.ends) == set(names) and front.num_by_number


def test_a_journal_hears_nothing_of_what_was_dropped_or_of_a_dead_engines_numbers() -> None:
    front = Front(["a", "b"])
    for name, number in (("a", 1), ("b", 2)):
        update = RequestUpdate.tokens(name, [4])
        update.number = number
        assert front.journal.record(update)
    assert front.journal.drop("a")
    assert [update.request_id for update in front.journal.record_tokens(TokenUpdates([1, 2], [5, 6]))] == ["b"]
    front.journal.engine_died()
    assert not front.journal.record_tokens(TokenUpdates([1, 2], [5, 6]))
    (entry,) = front.journal.take_due(0.0, 10)
    assert entry.resumed().output_token_ids == (4, 6)
    update = RequestUpdate.tokens("b", [7])
    update.number = 1  # of the next engine
    front.journal.record(update)
    for _ in range(PROGRESS):
        front.journal.record_tokens(TokenUpdates([1], [8]))
    assert entry.token_ids[:4] == [4, 6, 7, 8] and entry.recent_deaths == 0


def test_text_of_tokens_by_number_has_what_was_said_before() -> None:
    text = RequestText(make_request(output_kind=RequestOutputKind.DELTA, detokenize=False), None, 0, NullTokenizer())
    first = RequestUpdate("r", [4], (), (), None, None, 3, 2, 1.5)
    first.engine = 1
    text.accept(first, None)  # type: ignore[arg-type]
    whole = text.whole(RequestTokens("r", [5, 6], 1))
    assert (whole.num_cached_tokens, whole.num_preemptions, whole.first_scheduled_time, whole.engine) == (3, 2, 1.5, 1)
    text.accept(whole, None)  # type: ignore[arg-type]
    assert text.token_ids == [4, 5, 6] and text.num_cached_tokens == 3


@pytest.mark.parametrize("wrong", [([1], [], []), ([1], [4, 5], []), ([1], [4, 5], [1]), ([1, 2], [4, 5], [2])])
def test_what_does_not_add_up_is_refused(wrong: tuple[list[int], list[int], list[int]]) -> None:
    tokens = TokenUpdates()
    tokens.numbers, tokens.token_ids, tokens.counts = wrong
    with pytest.raises(msgspec.ValidationError, match="add up"):
        decode_from_engine(encode(FromEngine(tokens=tokens)))


def test_a_step_result_without_rows_brings_nothing() -> None:
    scheduler = make_scheduler()
    ask(scheduler, "a")
    plan = scheduler.schedule()
    scheduler.abort(["a"])
    empty = StepResult(plan.step_id, np.full((1, 1, 1), 4, np.int32), np.zeros((1, 1), np.int32))
    assert not scheduler.update(empty) and not scheduler.take_tokens()

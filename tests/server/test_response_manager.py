"""The manager of responses, without processes: hand-overs, and events that are not told twice."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from typing import Any

import pytest

from cadence.core.contract.response_messages import (
    ResponseJob,
    ResponseOrigin,
    ResponseState,
    ResumedResponse,
    StoreCall,
    StoreReply,
    StoreVerb,
)
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.responses.event_log import MOST_AT_ONCE
from cadence.entrypoints.server.responses.event_writer import EventWriter
from cadence.entrypoints.server.responses.manager import MAX_DEATHS, NO_FRONT, ResponseManager

NAME, TEXT = "resp_1", "Half a word, a word, and then some more of them. "
JOB = ResponseJob(ResponseOrigin(NAME, 5, 7), b"{}", b"[]", {}, {})


class FakeRunners:
    def __init__(self) -> None:
        self.serving = NO_FRONT
        self.resumed: list[ResumedResponse] = []
        self.cancelled: list[tuple[int, str]] = []

    def cancel(self, front: int, response_id: str) -> None:
        self.cancelled.append((front, response_id))

    def resume(self, resumed: ResumedResponse) -> int:
        if self.serving != NO_FRONT:
            self.resumed.append(resumed)
        return self.serving


def call(verb: StoreVerb, **fields: Any) -> StoreCall:
    return StoreCall(verb, "", NAME, **fields)


def begun(runners: FakeRunners) -> ResponseManager:
    manager = ResponseManager(runners)
    start = {"body": b'{"status":"queued"}', "is_background": True, "keeps_events": True, "job": JOB}
    assert manager.take(1, call(StoreVerb.BEGIN, **start)).state is ResponseState.RUNNING
    return manager


def read(manager: ResponseManager, start: int) -> StoreReply:
    return asyncio.run(manager.answer(NO_FRONT, call(StoreVerb.READ, start=start)))


def test_one_whose_front_is_gone_waits_for_another() -> None:
    runners = FakeRunners()
    manager = begun(runners)
    manager.take(1, call(StoreVerb.ADD, events=[b"a", b"b"], token_ids=[3, 4, 5]))
    manager.gone(1)
    assert not runners.resumed
    runners.serving = 2
    manager.hand_over()
    manager.hand_over()
    (resumed,) = runners.resumed
    assert resumed.job == JOB and resumed.events == [b"a", b"b"] and resumed.token_ids == [3, 4]
    manager.take(1, call(StoreVerb.ADD, events=[b"late"]))  # of the one that is gone
    manager.take(2, call(StoreVerb.ADD, events=[b"c"]))
    assert read(manager, 1).events == [b"b", b"c"]
    asyncio.run(manager.answer(2, call(StoreVerb.END, events=[b"d"])))
    assert manager.take(1, call(StoreVerb.GET)).state is ResponseState.UNKNOWN


def test_one_that_gets_on_may_lose_many_processes() -> None:
    runners = FakeRunners()
    runners.serving = 1
    manager = begun(runners)
    for number in range(5 * MAX_DEATHS):
        manager.take(
            1, call(StoreVerb.ADD, token_ids=[3] if number == 0 else [3, 4])
        )  # the last one once more, and another
        manager.gone(1)
    assert len(runners.resumed) == 5 * MAX_DEATHS and len(runners.resumed[-1].token_ids) == 5 * MAX_DEATHS - 1
    for _ in range(MAX_DEATHS):
        manager.take(1, call(StoreVerb.ADD, token_ids=[3]))  # no further
        manager.gone(1)
    stored = manager.take(1, call(StoreVerb.GET)).stored
    assert stored is not None and json.loads(stored.body)["status"] == "failed"


def test_one_that_ends_processes_fails() -> None:
    runners = FakeRunners()
    runners.serving = 1
    manager = begun(runners)
    manager.take(1, call(StoreVerb.ADD, events=[b"a"]))
    for _ in range(MAX_DEATHS):
        manager.gone(1)
    assert len(runners.resumed) == MAX_DEATHS - 1
    stored = manager.take(1, call(StoreVerb.GET)).stored
    assert stored is not None
    body = json.loads(stored.body)
    assert body["status"] == "failed" and f"{MAX_DEATHS} API processes ended" in body["error"]["message"]
    told = read(manager, 0)
    assert told.is_over and told.events[0] == b"a" and b'"sequence_number":2' in told.events[2]
    assert b"event: response.failed" in told.events[2]


def test_a_cancel_finds_who_runs_it() -> None:
    runners = FakeRunners()
    manager = begun(runners)

    async def cancel() -> StoreReply:
        asking = asyncio.ensure_future(manager.answer(3, call(StoreVerb.CANCEL)))
        await asyncio.sleep(0)
        assert runners.cancelled == [(1, NAME)]
        manager.take(1, call(StoreVerb.END, body=b'{"status":"cancelled"}'))
        return await asking

    assert asyncio.run(cancel()).body == b'{"status":"cancelled"}'


def test_a_cancel_while_nobody_runs_it_goes_with_it() -> None:
    runners = FakeRunners()
    manager = begun(runners)
    manager.gone(1)

    async def cancel() -> None:
        asking = asyncio.ensure_future(manager.answer(3, call(StoreVerb.CANCEL)))
        await asyncio.sleep(0)
        runners.serving = 2
        manager.hand_over()
        manager.take(2, call(StoreVerb.END))
        await asking

    asyncio.run(cancel())
    assert runners.resumed[0].is_cancelled and not runners.cancelled


def test_much_is_read_in_parts() -> None:
    manager = begun(FakeRunners())
    events = [b"x" * (MOST_AT_ONCE // 3) for _ in range(10)]
    manager.take(1, call(StoreVerb.ADD, events=events))
    found: list[bytes] = []
    while len(found) < len(events):
        part = read(manager, len(found)).events
        assert 0 < len(part) <= 4
        found += part
    assert found == events


def said(cuts: list[int], logprobs: bool) -> list[dict[str, Any]]:
    """A text in deltas that end at `cuts`, and what stands around it."""
    kind = "response.output_text.delta"
    ends = [0, *sorted(cuts), len(TEXT)]
    pieces = [(start, end) for start, end in itertools.pairwise(ends) if end > start]
    deltas = [
        {"type": kind, "delta": TEXT[start:end], "logprobs": list(range(start, end)) if logprobs else []}
        for start, end in pieces
    ]
    return [{"type": "response.created"}, {"type": "item.added"}, *deltas, {"type": "item.done"}, {"type": "end"}]


@pytest.mark.parametrize("logprobs", [False, True])
def test_events_are_told_once_however_they_are_cut(logprobs: bool) -> None:
    draw = random.Random(0)
    for _ in range(300):
        before, again = (said(draw.sample(range(len(TEXT)), draw.randrange(9)), logprobs) for _ in range(2))
        known = EventWriter().write(before[: draw.randrange(len(before) + 1)])
        writer = EventWriter(known)
        rest = [chunk for event in again for chunk in writer.write([event])]
        told = [json.loads(event.partition(b"\ndata: ")[2]) for event in (*known, *rest)]
        assert [event["sequence_number"] for event in told] == list(range(len(told)))
        assert "".join(event.get("delta", "") for event in told) == TEXT
        assert [event["type"] for event in told if "delta" not in event] == [
            event["type"] for event in again if "delta" not in event
        ]
        if logprobs:
            assert [one for event in told for one in event.get("logprobs", ())] == list(range(len(TEXT)))


def test_what_differs_from_what_was_told_is_an_error_once() -> None:
    writer = EventWriter(EventWriter().write(said([5], False)[:4]))
    with pytest.raises(ApiError, match="made it differently"):
        writer.write([{"type": "response.created"}, {"type": "item.added"},
                      {"type": "response.output_text.delta", "delta": "Another"}])  # fmt: skip
    (last,) = writer.write([{"type": "response.failed"}])
    assert b'"sequence_number":4' in last

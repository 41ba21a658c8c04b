"""A request that is run again comes to its reader as what was read before, in one piece, and then the rest."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from cadence.core.contract.request import EngineRequest, FinishReason, StopRule
from cadence.core.contract.step import TokenLogprobs
from cadence.core.contract.update import AnyUpdate, RequestTokens, RequestUpdate
from cadence.core.outputs import RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.engine.metrics.by_engine import MetricsByEngine
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.text.held_updates import TO_THE_END, HeldUpdates, Resumption, StreamPosition
from cadence.engine.text.output_processor import OutputProcessor, OutputStream
from cadence.entrypoints.open_requests import OpenRequests, Submission
from cadence.text.null_tokenizer import NullTokenizer

LENGTH = 20


def logprobs_of(token: int) -> TokenLogprobs:
    return TokenLogprobs(np.array([token], np.int32), np.array([-float(token)], np.float32), 1)


def updates_of(core_id: str, first: int, sizes: Sequence[int]) -> list[AnyUpdate]:
    """Tokens first, first + 1, …, in updates of these sizes; the last one ends the request."""
    updates: list[AnyUpdate] = []
    for number, size in enumerate(sizes):
        tokens = list(range(first, first + size))
        first += size
        if number % 2:
            updates.append(RequestTokens(core_id, tokens))
        else:
            updates.append(RequestUpdate.tokens(core_id, tokens))
    last = RequestUpdate.tokens(core_id, [first])
    last.finish_reason = FinishReason.LENGTH
    return [*updates, last]


def sizes(rng: random.Random) -> list[int]:
    cuts = sorted(rng.sample(range(1, LENGTH), rng.randint(0, 5)))
    return [end - begin for begin, end in zip([0, *cuts], [*cuts, LENGTH], strict=True)]


@pytest.mark.parametrize("seed", range(20))
def test_what_was_read_is_cut_where_the_reader_was(seed: int) -> None:
    rng = random.Random(seed)
    read = rng.randint(1, LENGTH)
    held, whole = HeldUpdates({"a": read, "b": TO_THE_END, "c": 0}), list[RequestUpdate]()
    streams = [updates_of(name, 100 * number, sizes(rng)) for number, name in enumerate("abc")]
    while any(streams):
        taken = held.take(rng.choice([stream for stream in streams if stream]).pop(0))
        assert not (whole and taken), "it was complete before"
        whole += taken
    later = held.take_later()
    tokens = {name: [t for one in later if one.request_id == name for t in one.new_token_ids] for name in "abc"}
    first, second = whole
    assert first.new_token_ids == list(range(read)) and first.finish_reason is None
    assert second.new_token_ids == list(range(100, 101 + LENGTH)) and second.finish_reason is FinishReason.LENGTH
    assert tokens == {"a": list(range(read, LENGTH + 1)), "b": [], "c": list(range(200, 201 + LENGTH))}
    assert [one.finish_reason for one in later if one.finish_reason] == [FinishReason.LENGTH] * 2


def test_logprobs_are_cut_with_their_tokens() -> None:
    held = HeldUpdates({"a": 2})
    update = RequestUpdate.tokens("a", [1, 2, 3])
    update.logprobs = [logprobs_of(token) for token in (1, 2, 3)]
    (whole,) = held.take(update)
    (later,) = held.take_later()
    assert isinstance(later, RequestUpdate)
    assert [one.token_ids_np[0] for one in whole.logprobs] == [1, 2]
    assert [one.token_ids_np[0] for one in later.logprobs] == [3]


def test_one_that_ends_before_is_not_waited_for() -> None:
    held = HeldUpdates({"a": 9})
    (whole,) = held.take(RequestUpdate.end("a", FinishReason.ABORT))
    assert whole.finish_reason is FinishReason.ABORT


class NoEngine:
    """Takes requests and says nothing."""

    def __init__(self) -> None:
        self.entries: list[JournalEntry] = []

    def submit(self, entry: JournalEntry) -> None:
        self.entries.append(entry)

    def drop(self, core_ids: Sequence[str]) -> None: ...


class Front:
    def __init__(self) -> None:
        self.engine = NoEngine()
        tokenizer = NullTokenizer()
        engines: Any = self.engine
        self.open = OpenRequests(engines, OutputProcessor(tokenizer, MetricsByEngine("m")))

    def begin(self, seed: int, n: int = 1) -> OutputStream:
        params = SamplingParams(n=n, temperature=1.0, detokenize=False, output_kind=RequestOutputKind.DELTA)
        params = self.open.seeded("r", params)
        stop = StopRule(frozenset(), frozenset(), 0, LENGTH)
        seed = seed if params.seed is None else params.seed
        request = EngineRequest("r", [1, 2], params, stop, seed, 0.0)
        return self.open.begin("r", Submission(request, None), None, [], None)

    async def deliver(self, core_id: str, *pieces: Sequence[int]) -> None:
        await self.open.deliver([RequestUpdate.tokens(core_id, piece) for piece in pieces])


def ids(output: RequestOutput) -> dict[int, list[int]]:
    return {one.index: list(one.token_ids) for one in output.outputs}


async def read_some(front: Front) -> StreamPosition:
    """Of two completions: three tokens and one are read, one more of the first waits."""
    stream = front.begin(seed=5, n=2)
    await front.deliver("0_r", [1, 2], [3])
    await front.deliver("1_r", [11])
    assert ids(await stream.next()) == {0: [1, 2, 3], 1: [11]}
    waits = asyncio.ensure_future(stream.next())
    await asyncio.sleep(0)
    await front.deliver("0_r", [4])
    position = front.open.position("r")
    waits.cancel()
    assert position is not None
    return position


def test_a_position_is_what_was_read() -> None:
    position = asyncio.run(read_some(Front()))
    assert (position.seed, dict(position.read), position.is_between) == (5, {0: 3, 1: 1}, True)
    assert Front().open.position("r") is None


def test_a_reader_that_has_not_asked_for_more_is_between_nothing() -> None:
    async def run() -> None:
        front = Front()
        stream = front.begin(seed=5)
        await front.deliver("r", [1])
        await stream.next()
        position = front.open.position("r")
        assert position is not None and not position.is_between

    asyncio.run(run())


def test_another_front_goes_on_after_what_was_read_with_the_same_seed() -> None:
    async def run() -> None:
        position = await read_some(Front())
        front, caught_up = Front(), list[str]()

        async def on_caught_up() -> None:
            caught_up.append("now")

        front.open.resume("r", Resumption(position, on_caught_up))
        stream = front.begin(seed=6, n=2)
        assert [entry.request.seed for entry in front.engine.entries] == [5, 6]
        await front.deliver("0_r", [1], [2, 3, 4, 5], [6])
        await front.deliver("1_r", [11, 12])
        assert ids(await stream.next()) == {0: [1, 2, 3], 1: [11]} and not caught_up
        assert ids(await stream.next()) == {0: [4, 5, 6], 1: [12]} and caught_up == ["now"]
        await front.deliver("0_r", [7])
        assert ids(await stream.next()) == {0: [7]} and caught_up == ["now"]
        front.open.finish("r")

    asyncio.run(run())

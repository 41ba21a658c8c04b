"""Outputs for a reader that is slower than the engine: fewer and larger, and not without end."""

from __future__ import annotations

import asyncio

import pytest

from cadence.core.errors import ReaderTooSlowError
from cadence.core.outputs import CompletionOutput, Logprob, RequestOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.text.output_processor import OutputStream


def output(tokens: list[int], logprobs: int = 0, index: int = 0, finished: bool = False) -> RequestOutput:
    positions = [{token + i: Logprob(-1.0) for i in range(logprobs)} for token in tokens] if logprobs else None
    completion = CompletionOutput(index, "".join(map(chr, tokens)), tokens, logprobs=positions)
    return RequestOutput("r", None, [1], None, [completion], finished)


def test_deltas_are_joined_until_they_are_read() -> None:
    async def scenario() -> None:
        stream = OutputStream(RequestOutputKind.DELTA, max_held=1000)
        for token in range(65, 75):
            piece = output([token], logprobs=2)
            piece.outputs[0].drafted = [0] if token % 2 else []
            assert stream.put(piece)
        told = await stream.next()
        assert told.outputs[0].text == "ABCDEFGHIJ" and list(told.outputs[0].token_ids) == list(range(65, 75))
        assert len(told.outputs[0].logprobs or ()) == 10 and told.outputs[0].drafted == [0, 2, 4, 6, 8]

    asyncio.run(scenario())


@pytest.mark.parametrize(("logprobs", "fits"), [(0, 30), (2, 10), (5, 5)])
def test_what_waits_is_bounded_in_tokens_and_logprobs(logprobs: int, fits: int) -> None:
    async def scenario() -> None:
        stream = OutputStream(RequestOutputKind.DELTA, max_held=30)
        for round in range(3):  # reading makes room
            assert [stream.put(output([65 + round], logprobs)) for _ in range(fits)] == [True] * fits
            assert len((await stream.next()).outputs[0].token_ids) == fits
        assert all(stream.put(output([65], logprobs, index=number % 2)) for number in range(fits))
        assert not stream.put(output([65], logprobs))
        await stream.next()  # what came before is not lost
        with pytest.raises(ReaderTooSlowError, match="more than 30 tokens and logprobs"):
            await stream.next()

    asyncio.run(scenario())


def test_the_last_output_always_fits() -> None:
    async def scenario() -> None:
        stream = OutputStream(RequestOutputKind.DELTA, max_held=5)
        assert stream.put(output([65] * 5)) and stream.put(output([66], finished=True))
        assert (await stream.next()).finished

    asyncio.run(scenario())


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.FINAL_ONLY])
def test_whole_answers_replace_one_another(kind: RequestOutputKind) -> None:
    async def scenario() -> None:
        stream = OutputStream(kind, max_held=5)
        assert all(stream.put(output([65] * length)) for length in range(1, 50))
        assert len((await stream.next()).outputs[0].token_ids) == 49

    asyncio.run(scenario())

"""Live input: a prompt that grows while it is answered gives the tokens of requests whose prompts were whole."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, AsyncLLMEngine, RequestOutput, RequestOutputKind, SamplingParams, StreamingInput
from cadence.config.args import EngineArgs
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.async_llm import AsyncLLM

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "num_gpu_blocks_override": 200, "block_size": 8}
BLOCK = 8
FIRST, SECOND, THIRD = list(range(5, 28)), [30, 31, 32], list(range(40, 45))
KINDS = list(RequestOutputKind)


class Front:
    """An AsyncLLM and its event loop, and the same model without a front, which is the oracle."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.runner = asyncio.Runner()
        self.llm = self.run(AsyncLLM.start(EngineArgs(model=str(directory), **{**OPTIONS, **options})))

    def run(self, job: Any) -> Any:
        return self.runner.run(job)

    def close(self) -> None:
        self.run(self.llm.shutdown(drain=False))
        self.runner.close()

    async def whole(self, prompt: Any, **changes: Any) -> RequestOutput:
        """Of a request whose prompt is all there at once."""
        final = sampling(RequestOutputKind.FINAL_ONLY, **changes)
        return [output async for output in self.llm.generate(prompt, final, f"whole-{os.urandom(4).hex()}")][-1]


@pytest.fixture(scope="module")
def front(tiny_model: Callable[[str], Path]) -> Iterator[Front]:
    made = Front(tiny_model("llama"))
    yield made
    made.close()


def sampling(kind: RequestOutputKind = RequestOutputKind.DELTA, **changes: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True, **changes}, output_kind=kind)


class Script:
    """Chunks, each of which comes when so many tokens were read since the one before it."""

    def __init__(self, *steps: tuple[int, Any], then: int = 0) -> None:
        """then: tokens after the last chunk, when the input ends"""
        self._steps, self._then = steps, then
        self._read = asyncio.Condition()
        self._since, self._prompt_len = 0, 0  # tokens that were read since the prompt grew, and its length then
        self.total = 0

    async def chunks(self) -> AsyncGenerator[Any]:
        length = 0
        for after, chunk in self._steps:
            await self._until(after, length)
            yield chunk
            given = chunk.prompt if isinstance(chunk, StreamingInput) else chunk
            length += len(given)
        await self._until(self._then, length)

    async def _until(self, count: int, length: int) -> None:
        async with self._read:
            await self._read.wait_for(lambda: not count or (self._since >= count and self._prompt_len >= length))

    async def until_total(self, count: int) -> None:
        async with self._read:
            await self._read.wait_for(lambda: self.total >= count)

    async def read(self, total: int, prompt_len: int) -> None:
        async with self._read:
            if prompt_len > self._prompt_len:
                self._prompt_len, self._since = prompt_len, 0
            self._since += total - self.total
            self.total = total
            self._read.notify_all()


class Read:
    """What a reader has of a live request."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self.text = ""
        self.reasons: list[str] = []
        self.last: Any = None
        self.outputs: list[RequestOutput] = []
        self.cumulative = False


async def read(llm: AsyncLLM, script: Script, params: SamplingParams, name: str = "live") -> Read:
    got, delta = Read(), params.output_kind is RequestOutputKind.DELTA
    got.cumulative = not delta
    async for output in llm.generate(script.chunks(), params, name):
        (completion,) = output.outputs
        assert output.request_id == name
        got.tokens = [*got.tokens, *completion.token_ids] if delta else list(completion.token_ids)
        got.text = got.text + completion.text if delta else completion.text
        assert output.finished == (completion.finish_reason is not None)
        got.reasons += [completion.finish_reason] if completion.finish_reason else []
        got.last = output
        got.outputs.append(output)
        await script.read(len(got.tokens), len(output.prompt_token_ids or []))
    return got


async def chain(front: Front, got: Read, places: list[tuple[int, list[int]]], **changes: Any) -> None:
    """Each part of what was written is what a fresh request writes whose prompt is all that was there before.
    places: how many tokens were written before each chunk"""
    before: list[int] = []
    ends = [count for count, _ in places[1:]] + [len(got.tokens)]
    for (begins, chunk), end in zip(places, ends, strict=True):
        before = [*before, *chunk]
        part = got.tokens[begins:end]
        fresh = await front.whole(before, **{**changes, "max_tokens": max(len(part), 1)})
        assert part == list(fresh.outputs[0].token_ids)[: len(part)]
        before += part


@pytest.mark.parametrize("kind", KINDS)
def test_chunks_before_the_first_token_are_one_prompt(front: Front, kind: RequestOutputKind) -> None:
    async def scenario() -> tuple[Read, RequestOutput]:
        script = Script((0, FIRST), (0, StreamingInput(SECOND)), (0, {"prompt_token_ids": THIRD}))
        return await read(front.llm, script, sampling(kind)), await front.whole(FIRST + SECOND + THIRD)

    got, whole = front.run(scenario())
    assert got.tokens == list(whole.outputs[0].token_ids)
    assert got.text == whole.outputs[0].text
    assert got.reasons == ["length"]
    assert got.last.prompt_token_ids == FIRST + SECOND + THIRD


def places(got: Read) -> list[tuple[int, list[int]]]:
    """Where the prompt grew: how many tokens were written before, and what came."""
    found: list[tuple[int, list[int]]] = []
    written, known = 0, 0
    for output in got.outputs:
        ids = output.prompt_token_ids or []
        if len(ids) > known:
            found.append((written, ids[known:]))
            known = len(ids)
        (completion,) = output.outputs
        written = max(written, len(completion.token_ids)) if got.cumulative else written + len(completion.token_ids)
    return found


@pytest.mark.parametrize("changes", [{}, {"temperature": 0.9, "seed": 5}, {"logprobs": 2}], ids=str)
@pytest.mark.parametrize("kind", [RequestOutputKind.DELTA, RequestOutputKind.CUMULATIVE])
def test_a_chunk_among_the_output_is_a_fresh_request(
    front: Front, kind: RequestOutputKind, changes: dict[str, Any]
) -> None:
    changes = {**changes, "max_tokens": 40}

    async def scenario() -> Read:
        script = Script((0, FIRST), (3, SECOND), (9, StreamingInput(THIRD, sampling(kind, **changes))))
        got = await read(front.llm, script, sampling(kind, **changes))
        await chain(front, got, places(got), **changes)
        return got

    got = front.run(scenario())
    assert [chunk for _, chunk in places(got)] == [FIRST, SECOND, THIRD]
    assert [count >= least for (count, _), least in zip(places(got), (0, 3, 9), strict=True)] == [True] * 3
    assert got.reasons == ["length"]
    assert len(got.tokens) - places(got)[-1][0] == 40, "each chunk has max_tokens of its own"
    assert got.last.prompt_token_ids == FIRST + SECOND + THIRD
    known = len(FIRST + SECOND) + places(got)[-1][0]
    assert got.last.num_cached_tokens >= known - BLOCK, "what was computed stays"
    if kind is RequestOutputKind.CUMULATIVE and "logprobs" in changes:
        assert len(got.last.outputs[0].logprobs) == len(got.tokens)


def test_it_waits_for_more_after_an_answer(front: Front) -> None:
    async def scenario() -> Read:
        got = await read(front.llm, Script((0, FIRST), (12, SECOND), then=12), sampling())
        await chain(front, got, places(got))
        return got

    got = front.run(scenario())
    assert places(got) == [(0, FIRST), (12, SECOND)]
    assert (len(got.tokens), got.reasons) == (24, ["length"])


def test_texts_before_the_first_token_are_one_text(front: Front) -> None:
    async def scenario() -> tuple[Read, RequestOutput]:
        got = await read(front.llm, Script((0, "the qu"), (0, "ick brown")), sampling())
        return got, await front.whole("the quick brown")

    got, whole = front.run(scenario())
    assert (got.tokens, got.last.prompt_token_ids) == (list(whole.outputs[0].token_ids), whole.prompt_token_ids)
    assert got.last.prompt == "the quick brown"


def test_a_stream_goes_on_when_its_engine_dies(front: Front) -> None:
    async def scenario() -> Read:
        script = Script((0, FIRST), (4, SECOND), (30, THIRD))
        got = asyncio.ensure_future(read(front.llm, script, sampling(max_tokens=60)))
        for after in (2, 20):
            await script.until_total(after)
            os.kill(front.llm.engine_pid, signal.SIGKILL)
            while not front.llm.engine_pid or not front.llm.is_ready():
                await asyncio.sleep(0.01)
        read_all = await got
        await chain(front, read_all, places(read_all), max_tokens=60)
        return read_all

    before = front.llm.num_restarts
    got = front.run(scenario())
    assert front.llm.num_restarts > before
    assert (got.reasons, [chunk for _, chunk in places(got)]) == (["length"], [FIRST, SECOND, THIRD])


@pytest.mark.parametrize("after", [2, 12], ids=["while it writes", "while it waits"])
def test_an_abort_ends_all(front: Front, after: int) -> None:
    async def scenario() -> Read:
        script = Script((0, FIRST), then=10**6)
        params = sampling(max_tokens=12 if after == 12 else 200)
        got = asyncio.ensure_future(read(front.llm, script, params, "aborted"))
        await script.until_total(after)
        await front.llm.abort("aborted")
        return await got

    got = front.run(scenario())
    assert got.reasons == ["abort"] and got.last.finished
    assert not front.run(front.llm.engine_state()).running


@pytest.mark.parametrize(
    ("bad", "field"),
    [(list(range(5, 205)) * 2, "prompt"), ([5, 10**9], "prompt"), ({"prompt": 3}, "prompt"),
     (StreamingInput([5], SamplingParams(n=2, output_kind=RequestOutputKind.DELTA)), "n"),
     (StreamingInput([5], SamplingParams()), "output_kind")],
    ids=["too long", "no token", "no text", "n", "kind"],
)  # fmt: skip
def test_an_error_names_its_chunk(front: Front, bad: Any, field: str) -> None:
    with pytest.raises(InvalidRequestError, match=r"^chunk 2: ") as caught:
        front.run(read(front.llm, Script((0, FIRST), (2, bad)), sampling(max_tokens=50)))
    assert caught.value.field == field
    assert not front.run(front.llm.engine_state()).running


def test_an_error_of_the_input_reaches_the_reader(front: Front) -> None:
    async def chunks() -> AsyncGenerator[list[int]]:
        yield FIRST
        raise KeyError("the caller's own")

    async def scenario() -> None:
        async for _ in front.llm.generate(chunks(), sampling(), "broken"):
            pass

    with pytest.raises(KeyError, match="the caller's own"):
        front.run(scenario())


def test_without_a_prefix_cache_it_is_computed_again(tiny_model: Callable[[str], Path]) -> None:
    bare = Front(tiny_model("llama"), enable_prefix_caching=False)
    try:

        async def scenario() -> Read:
            got = await read(bare.llm, Script((0, FIRST), (3, SECOND)), sampling())
            await chain(bare, got, places(got))
            return got

        assert bare.run(scenario()).last.num_cached_tokens == 0
    finally:
        bare.close()


def test_under_the_calls_of_vllm(tiny_model: Callable[[str], Path]) -> None:
    """Its input lives on the caller's loop, its engine on another."""
    engine = AsyncLLMEngine.from_engine_args(EngineArgs(model=str(tiny_model("llama")), **OPTIONS))

    async def scenario() -> list[int]:
        ready = asyncio.Event()

        async def chunks() -> AsyncGenerator[StreamingInput]:
            yield StreamingInput(FIRST)
            await ready.wait()
            yield StreamingInput(SECOND)

        tokens: list[int] = []
        async for output in engine.generate(chunks(), sampling(), "live"):
            tokens += output.outputs[0].token_ids
            if len(tokens) >= 12:
                ready.set()
        return tokens

    try:
        tokens = asyncio.run(scenario())
    finally:
        engine.shutdown()
    llm = LLM(str(tiny_model("llama")), **OPTIONS)
    final = sampling(RequestOutputKind.FINAL_ONLY)
    (first,) = llm.generate([FIRST], final, use_tqdm=False)
    (second,) = llm.generate([FIRST + list(first.outputs[0].token_ids) + SECOND], final, use_tqdm=False)
    assert tokens == [*first.outputs[0].token_ids, *second.outputs[0].token_ids]

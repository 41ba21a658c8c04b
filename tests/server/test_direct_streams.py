"""Text that goes from the engine to the outbox in one call: the same words for every reader, however slow."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind
from cadence.engine.text.output_processor import OutputStream
from cadence.entrypoints.server.http.direct import DirectStream
from tests.server.helpers import ServerProcess
from tests.server.streams import connect, request_bytes

pytestmark = pytest.mark.warm

TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }} / {% endfor %}assistant:"
STREAMS, TOKENS = 12, 300


@pytest.fixture(scope="module")
def server(tiny_model: Callable[[str], Path]) -> Iterator[ServerProcess]:
    flags = ("--max-model-len", "512", "--chat-template", TEMPLATE)
    with ServerProcess(tiny_model("llama"), *flags, engine="toy") as running:
        yield running


def asked(number: int, **fields: Any) -> tuple[str, dict[str, Any]]:
    body: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "seed": 1, "n": 1 + number % 3, **fields}
    if number % 2:
        return "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": f"hello {number}"}]}
    return "/v1/completions", {**body, "prompt": [5 + number, 6, 7]}


def text_of(choice: dict[str, Any]) -> str:
    return str(choice.get("text") or (choice.get("message") or choice.get("delta") or {}).get("content") or "")


async def streamed(url: str, number: int, pause_s: float) -> tuple[dict[int, str], dict[str, Any]]:
    """pause_s: between two looks at what has come. -> (texts by choice, usage)"""
    path, body = asked(number, stream=True, stream_options={"include_usage": True})
    reader, writer = await connect(url)
    writer.write(request_bytes(path, body))
    texts: dict[int, str] = {}
    usage: dict[str, Any] = {}
    lines = 0
    async for line in reader:
        lines += 1
        if pause_s and lines % 50 == 0:
            await asyncio.sleep(pause_s)
        if line.startswith(b"data: [DONE]"):
            break
        if line.startswith(b"data: "):
            chunk = json.loads(line[6:])
            usage = chunk["usage"] or usage
            for choice in chunk["choices"]:
                texts[choice["index"]] = texts.get(choice["index"], "") + text_of(choice)
    writer.close()
    return texts, usage


@pytest.fixture(scope="module")
def whole_answers(server: ServerProcess) -> list[dict[str, Any]]:
    """By the stream's number."""
    with httpx.Client(base_url=server.url, trust_env=False, timeout=240) as client, ThreadPoolExecutor(16) as pool:
        bodies = [asked(number) for number in range(STREAMS)]
        return list(pool.map(lambda one: client.post(one[0], json=one[1]).json(), bodies))


@pytest.mark.parametrize("pause_s", [0.0, 0.02])
def test_streams_say_what_whole_answers_say(
    server: ServerProcess, whole_answers: list[dict[str, Any]], pause_s: float
) -> None:
    async def all_streams() -> list[tuple[dict[int, str], dict[str, Any]]]:
        return list(await asyncio.gather(*(streamed(server.url, number, pause_s) for number in range(STREAMS))))

    found = asyncio.run(all_streams())
    for number, ((texts, usage), whole) in enumerate(zip(found, whole_answers, strict=True)):
        assert texts == {choice["index"]: text_of(choice) for choice in whole["choices"]}, asked(number)
        for name in ("prompt_tokens", "completion_tokens"):
            assert usage[name] == whole["usage"][name], asked(number)


class FakeTap:
    def __init__(self) -> None:
        self.is_ready = True
        self.said: list[str] = []

    def put(self, index: int, text: str, token_ids: Sequence[int]) -> None:
        if text == "bad":
            raise ValueError("it cannot be written")
        self.said.append(text)


def output(text: str) -> RequestOutput:
    return RequestOutput("x", None, None, None, [CompletionOutput(0, text, [1])], finished=False)


def test_a_tap_gets_only_what_the_reader_waits_for() -> None:
    async def check() -> None:
        stream, tap = OutputStream(RequestOutputKind.DELTA), FakeTap()
        stream.tap(tap)
        assert not stream.is_tapped, "nobody waits"
        stream.put(output("first"))
        reader = asyncio.ensure_future(stream.next())
        assert (await reader).outputs[0].text == "first"
        reader = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        assert stream.is_tapped
        stream.put_text(0, "second", [2])
        assert tap.said == ["second"]
        tap.is_ready = False
        assert not stream.is_tapped, "the client does not read"
        tap.is_ready = True
        stream.put(output("third"))
        assert not stream.is_tapped, "something else comes first, though the reader has not seen it yet"
        assert (await reader).outputs[0].text == "third"
        reader = asyncio.ensure_future(stream.next())
        await asyncio.sleep(0)
        stream.put_text(0, "bad", [3])
        with pytest.raises(ValueError, match="cannot be written"):
            await reader
        assert not stream.is_tapped

    asyncio.run(check())


class FakeWriter:
    def __init__(self) -> None:
        self.is_ready = True
        self.written: list[bytes] = []

    def put(self, chunk: bytes) -> None:
        self.written.append(chunk)

    async def write(self, chunk: bytes) -> None:
        self.put(chunk)


def test_nothing_is_written_before_the_stream_has_begun() -> None:
    direct, writer = DirectStream(lambda index, text, token_ids: text.encode()), FakeWriter()
    assert not direct.is_ready
    direct.connect(writer)
    assert direct.is_ready
    for text in ("one", "", "two"):
        direct.put(0, text, [1])
    assert writer.written == [b"one", b"two"]
    writer.is_ready = False
    assert not direct.is_ready

"""Bodies of any content up to the limit hold nobody up, and all of them together take no more memory than they may."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http import bodies
from cadence.entrypoints.server.http.bodies import BODY
from cadence.entrypoints.server.http.body_budget import CHUNK_BYTES, UNBUDGETED_BYTES, BodyBudget, BodyShare
from cadence.entrypoints.server.http.body_limits import BodyLimits
from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.json_limits import JsonLimits
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
MIB = 2**20
JSON = {"content-type": "application/json"}
USER = b'{"messages":[{"role":"user","content":"a"}],'


def filled(start: bytes, unit: bytes, end: bytes, size: int = 16 * MIB) -> bytes:
    return start + unit * ((size - len(start) - len(end)) // len(unit)) + end


# path, body, a word of the answer
WORST: dict[str, tuple[str, Callable[[], bytes], str]] = {
    "deep": ("/v1/chat/completions", lambda: filled(b'{"messages":', b"[", b""), "limit"),
    "wide": ("/v1/chat/completions", lambda: filled(USER + b'"metadata":{"a":[1', b",[[[[1]]]]", b"]}}"), "limit"),
    "prompts": ("/v1/completions", lambda: filled(b'{"prompt":["a"', b',"a"', b"]}"), "limit"),
    "parts": ("/v1/messages", lambda: filled(b'{"messages":[{"content":[{}', b",{}", b"]}]}"), "limit"),
    "ids": ("/detokenize", lambda: filled(b'{"tokens":[1', b",1", b"]}"), "limit"),
    "name": ("/v1/responses", lambda: filled(b'{"input":"a","', b"x", b'":1}'), "a field's name"),
    "escapes": ("/tokenize", lambda: filled(b'{"model":"', rb"\ud83d\ude00", b'"}'), "prompt"),
    "quotes": ("/v1/completions", lambda: filled(b'{"x":"', rb"\"", b'"}'), "prompt"),
}


def test_the_event_loop_is_never_held(serve: Serve) -> None:
    """Measured in processor time, which other processes on the machine do not change. Read on the event loop, these
    bodies hold it for seconds each."""
    app = serve()
    ticks: list[float] = []

    def tick() -> None:
        ticks.append(time.process_time())
        app.loop.call_later(0.005, tick)

    bodies = {name: (path, make(), word) for name, (path, make, word) in WORST.items()}
    app.do(tick)
    with app.client(timeout=120) as client, ThreadPoolExecutor(3) as pool:
        for name, (path, body, word) in bodies.items():
            reply = client.post(path, content=body, headers=JSON)
            assert reply.status_code == 400 and word in reply.text and len(reply.content) < 3000, (name, reply.text)
        sent = [
            pool.submit(client.post, path, content=body, headers=JSON) for path, body, _ in list(bodies.values())[:3]
        ]
        assert {one.result().status_code for one in sent} == {400}
    longest = max(after - before for before, after in itertools.pairwise(ticks))
    total = ticks[-1] - ticks[0]  # one body, read in one go, would be a tenth of it or more
    assert len(ticks) > 50 and longest < max(0.8, total / 20), (longest, total)


@pytest.mark.parametrize(
    ("path", "start", "unit", "end", "param"),
    [
        ("/v1/completions", b'{"prompt":["a"', b',"a"', b"]}", "prompt"),
        ("/v1/completions", b'{"prompt":"a","stop":["a"', b',"a"', b"]}", "stop"),
        ("/v1/completions", b'{"prompt":"a","stop_token_ids":[1', b",1", b"]}", "stop_token_ids"),
        ("/v1/completions", b'{"prompt":"a","bad_words":["a"', b',"a"', b"]}", "bad_words"),
        ("/v1/completions", b'{"prompt":"a","allowed_token_ids":["a"', b',"a"', b"]}", "allowed_token_ids"),
        ("/v1/chat/completions", USER + b'"tools":[1', b",1", b"]}", "tools"),
        ("/v1/chat/completions", USER + b'"documents":[1', b",1", b"]}", "documents"),
        ("/v1/chat/completions", b'{"messages":[1', b",1", b"]}", "messages"),
        (
            "/v1/chat/completions",
            b'{"messages":[{"role":"user","content":["a"',
            b',"a"',
            b"]}]}",
            "messages[0].content",
        ),
        ("/v1/responses", b'{"input":[1', b",1", b"]}", "input"),
        ("/v1/responses", b'{"input":[{"role":"user","content":[1', b",1", b"]}]}", "input[0].content"),
        ("/tokenize", b'{"messages":[1', b",1", b"]}", "messages"),
        ("/detokenize", b'{"tokens":["a"', b',"a"', b"]}", "tokens[0]"),
        ("/detokenize", b'{"tokens":[1', b",1", b"]}", "tokens"),
    ],
)
def test_long_lists_are_refused_by_name(
    serve: Serve, path: str, start: bytes, unit: bytes, end: bytes, param: str
) -> None:
    """300,000 entries: fewer than the JSON of a body may hold."""
    body = start + unit * 300_000 + end
    with serve().client() as client:
        reply = client.post(path, content=body, headers=JSON)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == param, reply.text


@pytest.mark.parametrize("field", ["logit_bias", "chat_template_kwargs"])
def test_large_objects_are_refused_by_name(serve: Serve, field: str) -> None:
    with serve().client() as client:
        many = {str(number): "wrong" for number in range(20_000)}
        body = {"messages": [{"role": "user", "content": "a"}], field: many}
        reply = client.post("/v1/chat/completions", json=body)
    assert reply.status_code == 400 and reply.json()["error"]["param"] == field
    assert "at most 1024 entries" in reply.text


def test_a_large_body_is_served_as_a_small_one(serve: Serve) -> None:
    with serve().client() as client:
        small = client.post("/v1/completions", json={"prompt": "to be", "max_tokens": 4}).json()
        large = client.post("/v1/completions", json={"prompt": "to be", "max_tokens": 4, "metadata": {"a": "x" * MIB}})
        chat = {"messages": [{"role": "user", "content": "to be"}], "max_tokens": 4, "metadata": {"a": "x" * MIB}}
        assert client.post("/v1/chat/completions", json=chat).status_code == 200
    assert large.json()["choices"] == small["choices"]


def test_bodies_together_stay_within_the_budget() -> None:
    """40 MiB arrive at once where 8 MiB may be held: the rest is not read before there is room."""
    budget, size, count = 8 * MIB, MIB, 40
    held: list[int] = []
    served: list[int] = []

    async def scenario() -> None:
        gate = asyncio.Semaphore(0)

        async def app(scope: Any, receive: Any, send: Any) -> None:
            served.append(len(scope[BODY].take()))
            await gate.acquire()

        limits = BodyLimits(app, ServeOptions(max_held_body_bytes=budget))
        clients = [asyncio.ensure_future(limits(_scope(), _sender(size), _ignore)) for _ in range(count)]
        for _ in range(count):
            await asyncio.sleep(0.005)
            held.append(limits._budget.held)
            gate.release()
        await asyncio.wait_for(asyncio.gather(*clients), 20)
        assert limits._budget.held == 0 and not limits._budget._arriving

    asyncio.run(scenario())
    assert served == [size] * count
    unbudgeted = count * UNBUDGETED_BYTES  # the first message of everyone
    assert budget // 2 < max(held) <= budget + size + unbudgeted


def test_small_bodies_pass_the_waiting_ones() -> None:
    async def scenario() -> list[str]:
        budget = BodyBudget(limit=CHUNK_BYTES, max_wait=0.05)
        first, second, small = BodyShare(budget), BodyShare(budget), BodyShare(budget)
        for share in (first, second):
            share.put(UNBUDGETED_BYTES)
        await first.reserve()  # the oldest always goes on
        first.put(10 * CHUNK_BYTES)
        await first.reserve()
        await small.reserve()  # less than anyone asks for
        small.put(1000)
        with pytest.raises(ApiError) as late:
            await second.reserve()
        assert late.value.status == 503
        waiting = asyncio.ensure_future(second.reserve())
        await asyncio.sleep(0)
        first.free()
        await waiting
        for share in (first, second, small):
            share.free()
            share.free()
        return [f"{budget.held}", f"{len(budget._arriving)}"]

    assert asyncio.run(scenario()) == ["0", "0"]


def test_room_that_a_slow_body_reserved_and_did_not_fill_is_for_others() -> None:
    async def scenario() -> None:
        budget = BodyBudget(limit=2 * CHUNK_BYTES, max_wait=240.0)
        slow, other = BodyShare(budget), BodyShare(budget)
        for share in (slow, other):
            share.put(UNBUDGETED_BYTES)
        await slow.reserve()
        waiting = asyncio.ensure_future(other.reserve())
        await asyncio.sleep(0)
        assert not waiting.done()
        slow.put(10)  # and nothing more of it for a long time
        await asyncio.wait_for(waiting, 120)

    asyncio.run(scenario())


def _scope() -> dict[str, Any]:
    headers = [(b"content-type", b"application/json")]
    return {"type": "http", "method": "POST", "path": "/", "headers": headers}


def _sender(size: int) -> Callable[[], Any]:
    """A client that sends so many bytes, and stays."""
    left = size

    async def receive() -> dict[str, Any]:
        nonlocal left
        await asyncio.sleep(0)
        if not left:
            await asyncio.sleep(60)
        part = min(left, UNBUDGETED_BYTES)
        left -= part
        return {"type": "http.request", "body": b"x" * part, "more_body": bool(left)}

    return receive


async def _ignore(message: Any) -> None: ...


def test_nobody_waits_for_ever_for_large_bodies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "READ_S", 0.1)

    async def ask() -> None:
        reader = bodies.BodyReader(JsonLimits(64, 500_000))
        held = threading.Event()
        first = asyncio.ensure_future(asyncio.to_thread(lambda: reader._thread.submit(held.wait, 30).result()))
        try:
            await asyncio.sleep(0.05)
            with pytest.raises(ApiError) as caught:
                await reader.run(bodies.SMALL_BODY + 1, int)
            assert caught.value.status == 503
        finally:
            held.set()
            await first
        assert await reader.run(bodies.SMALL_BODY + 1, int) == 0

    asyncio.run(ask())


def test_the_event_loop_has_its_turns_between_two_large_bodies() -> None:
    """An answer takes it several, and each might wait for a long step of a reader that never rests."""
    began, ended = [], []

    def read() -> None:
        began.append(time.monotonic())
        time.sleep(0.01)
        ended.append(time.monotonic())
        if len(ended) == 1:
            raise ValueError("no body")

    async def ask() -> None:
        reader = bodies.BodyReader(JsonLimits(64, 500_000))
        reads = (reader.run(bodies.SMALL_BODY + 1, read) for _ in range(3))
        first, *others = await asyncio.gather(*reads, return_exceptions=True)
        assert isinstance(first, ValueError) and others == [None, None]

    asyncio.run(ask())
    assert all(next_one - last >= bodies.PAUSE_S for last, next_one in zip(ended, began[1:], strict=False))

"""The outbox: the same bytes by uvicorn's transport and by plain ASGI, and a client that does not read stops both."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvicorn
from starlette.types import Message, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from cadence.entrypoints.server.http.outbox import BODY_WRITER, HIGH_WATER, Outbox, OutboxWriter, writer_of
from cadence.entrypoints.server.http.uvicorn_private import (
    HOLDS_FOR,
    NoShortcut,
    SentTail,
    UvicornChunks,
    UvicornHttp,
    shortcut_for,
)
from cadence.entrypoints.server.server import HttpServer

START: Message = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
END: Message = {"type": "http.response.body", "body": b"the end", "more_body": False}
Answer = Callable[[Scope, Receive, Send], Awaitable[None]]


def make_cycle(transport: Any, method: str = "POST") -> RequestResponseCycle:
    scope: Any = {"method": method, "http_version": "1.1"}
    unused: dict[str, Any] = {"logger": None, "access_logger": None, "access_log": False, "default_headers": []}
    flow, event = FlowControl(transport), asyncio.Event()
    tail: Any = SentTail(transport)
    return RequestResponseCycle(
        scope, tail, flow, **unused, message_event=event, expect_100_continue=False, keep_alive=True,
        on_response=lambda: None,
    )  # fmt: skip


def hidden(send: Send) -> Send:
    """A server's `send` behind which nobody can look."""

    async def plain(message: Message) -> None:
        await send(message)

    return plain


def test_the_version_that_the_shortcut_and_the_protocol_hold_for() -> None:
    """With another version: read `uvicorn_private.py` against it, then change HOLDS_FOR."""
    assert uvicorn.__version__.startswith(HOLDS_FOR + "."), f"read off uvicorn {HOLDS_FOR}, not {uvicorn.__version__}"

    async def made() -> tuple[HttpToolsProtocol, RequestResponseCycle]:
        return UvicornHttp(uvicorn.Config(many_turns), ServerState(), {}), make_cycle(Wire())

    protocol, cycle = asyncio.run(made())
    assert isinstance(shortcut_for(cycle.send), UvicornChunks)
    parsed = {"on_message_begin", "on_headers_complete", "on_body", "on_message_complete"}
    for name in (
        *parsed,
        "connection_made",
        "connection_lost",
        "data_received",
        "_start_asgi_task",
        "send_400_response",
        "on_response_complete",
    ):
        assert hasattr(HttpToolsProtocol, name), f"uvicorn {uvicorn.__version__} lacks HttpToolsProtocol.{name}"
    assert {"loop", "transport", "root_path", "headers", "flow", "cycle", "pipeline"} <= vars(protocol).keys()
    assert {"keep_alive", "message_event", "response_started", "more_body", "scope"} <= vars(cycle).keys()
    assert {"read_paused", "write_paused"} <= vars(cycle.flow).keys()


@pytest.mark.parametrize("gone", ["chunked_encoding", "flow", "transport", "disconnected", "response_complete"])
def test_another_server_has_no_shortcut(gone: str) -> None:
    async def scenario() -> None:
        cycle = make_cycle(Wire())
        delattr(cycle, gone)
        assert isinstance(shortcut_for(cycle.send), NoShortcut)
        assert isinstance(shortcut_for(hidden(cycle.send)), NoShortcut)

    asyncio.run(scenario())


async def many_turns(scope: Scope, receive: Receive, send: Send) -> None:
    """One chunk in a turn, several in a turn, one larger than the mark, one left for the last message."""
    await send(START)
    writer = writer_of(scope, send)
    for turn in range(20):
        for number in range(turn % 4):
            await writer.write(b"data: %d of turn %d\n\n" % (number, turn))
        await asyncio.sleep(0)
    await writer.write(b"x" * (3 * HIGH_WATER))
    await writer.write(b"left over, ")
    await send(END)


async def held_back(scope: Scope, receive: Receive, send: Send) -> None:
    """A layer that passes messages on when it comes to it, as starlette's BaseHTTPMiddleware does."""
    queue: asyncio.Queue[Message] = asyncio.Queue()
    inner = asyncio.create_task(many_turns(scope, receive, queue.put))
    while True:
        message = await queue.get()
        await asyncio.sleep(0.02)
        await send(message)
        if message is END:
            break
    await inner


class Unseen:
    """Between the server and the outbox, so that there is no shortcut."""

    def __init__(self, app: Answer) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._app(scope, receive, hidden(send))


async def turns() -> None:
    """Of the loop, many, however slow the machine is, and some 50 ms at least."""
    for _ in range(50):
        await asyncio.sleep(0.001)


async def answer_of(app: Answer, http: Any, method: str) -> bytes:
    """All that a client reads."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, http=http, lifespan="off", log_config=None, server_header=False, date_header=False,  # type: ignore[arg-type]
        )  # fmt: skip
        server = HttpServer(config)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started:
            await asyncio.sleep(0.005)
        reader, writer = await asyncio.open_connection(*bound.getsockname())
        writer.write(f"{method} / HTTP/1.1\r\nhost: h\r\nconnection: close\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
        server.should_exit = True
        await asyncio.wait_for(serving, 20)
        return answer


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("app", [many_turns, held_back])
def test_the_same_bytes_with_and_without_the_shortcut(app: Answer, method: str) -> None:
    by_transport = asyncio.run(answer_of(Outbox(app), UvicornHttp, method))
    by_asgi = asyncio.run(answer_of(Unseen(Outbox(app)), UvicornHttp, method))
    assert by_transport == by_asgi
    body = by_transport.partition(b"\r\n\r\n")[2]
    assert by_transport.startswith(b"HTTP/1.1 200") and (body.endswith(b"the end\r\n0\r\n\r\n") or method == "HEAD")
    of_another_server = asyncio.run(answer_of(Outbox(app), "h11", method))
    assert of_another_server.partition(b"\r\n\r\n")[2] == body


class Wire:
    """A transport whose client reads when it is told to."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.cycle: Any = None

    def write(self, data: bytes) -> None:
        self.sent.append(data)
        if sum(map(len, self.sent)) > HIGH_WATER:
            self.cycle.flow.pause_writing()

    def get_write_buffer_size(self) -> int:
        return sum(map(len, self.sent))

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def read(self) -> bytes:
        content = b"".join(self.sent)
        self.sent.clear()
        self.cycle.flow.resume_writing()
        return content


async def open_answer(shortcut: bool) -> tuple[Wire, OutboxWriter]:
    wire = Wire()
    wire.cycle = make_cycle(wire)
    send = wire.cycle.send if shortcut else hidden(wire.cycle.send)
    writer = OutboxWriter(send, Outbox(many_turns))
    await writer.send(START)
    wire.read()
    return wire, writer


@pytest.mark.parametrize("shortcut", [True, False], ids=["shortcut", "asgi"])
def test_one_turn_of_a_stream_does_not_pass_the_high_water_mark(shortcut: bool) -> None:
    """A stream that has much to say at once is stopped by the transport, not by its own end; it goes on when its client
    reads, and its last message comes last."""

    async def scenario() -> None:
        wire, writer = await open_answer(shortcut)
        written = 0

        async def stream() -> None:
            nonlocal written
            for _ in range(100):
                await writer.write(b"x" * 30_000)
                written += 30_000
            await writer.send(END)

        streaming = asyncio.create_task(stream())
        await turns()
        assert HIGH_WATER < written < 3 * HIGH_WATER and not streaming.done()
        content = b""
        while not streaming.done():
            content += wire.read()
            await asyncio.sleep(0)
        content += wire.read()
        assert content.count(b"x" * 1000) == 3000 and content.endswith(b"the end\r\n0\r\n\r\n")
        await writer.write(b"too late")  # a ping that was waiting
        await asyncio.sleep(0)
        assert wire.read() == b""

    asyncio.run(scenario())


def test_a_client_that_leaves_frees_the_stream() -> None:
    async def scenario() -> None:
        wire, writer = await open_answer(True)
        for _ in range(2):
            await writer.write(b"x" * (HIGH_WATER + 1))
        waiting = asyncio.create_task(writer.write(b"more"))
        await turns()
        assert not waiting.done()
        wire.cycle.disconnected = True
        wire.cycle.flow.resume_writing()
        await asyncio.wait_for(waiting, 5)
        await asyncio.sleep(0)
        assert len(wire.sent) == 1

    asyncio.run(scenario())


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a while"])
def test_what_a_server_raises_reaches_its_own_stream_alone(waits: bool) -> None:
    async def broken(message: Message) -> None:
        if message["type"] == "http.response.body":
            if waits:
                await asyncio.sleep(0.01)
            raise OSError("the client is gone")

    async def scenario() -> None:
        wire = Wire()
        wire.cycle = make_cycle(wire)
        outbox = Outbox(many_turns)
        bad, good = OutboxWriter(broken, outbox), OutboxWriter(hidden(wire.cycle.send), outbox)
        for writer in (bad, good):
            await writer.send(START)
            await writer.write(b"chunk")
        await turns()
        assert wire.read().endswith(b"5\r\nchunk\r\n")
        with pytest.raises(OSError, match="the client is gone"):
            await bad.write(b"another")
        await good.write(b"another")

    asyncio.run(scenario())


def test_every_request_has_a_writer() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope[BODY_WRITER])

    seen: list[object] = []
    asyncio.run(Outbox(app)({"type": "http"}, None, hidden(None)))  # type: ignore[arg-type]
    assert isinstance(seen[0], OutboxWriter)

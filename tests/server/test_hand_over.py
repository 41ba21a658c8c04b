"""What is taken from an event loop that is stuck, and what is not."""

from __future__ import annotations

import asyncio
import functools
import os
import socket
import threading
from typing import Any

import pytest
import uvicorn
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from cadence.engine.text.held_updates import StreamPosition
from cadence.entrypoints.server.http.request_ids import CREATED, REQUEST_ID, created, request_id
from cadence.entrypoints.server.http.sockets.connection import BoundedHttpProtocol, HttpLimits, ResumedRequest
from cadence.entrypoints.server.http.sockets.connections import Connections
from cadence.entrypoints.server.http.uvicorn_private import MAX_PIECE_BYTES, AnswerGate, SentTail
from cadence.entrypoints.server.resume.hand_over import HandOver
from cadence.entrypoints.server.resume.suspects import Suspects
from cadence.entrypoints.server.resume.unfinished import (
    HandedOver,
    UnfinishedAnswer,
    decode,
    encode,
    read_file,
    write_file,
)


def answer(unsent: bytes) -> UnfinishedAnswer:
    position = StreamPosition(2**64 - 1, {0: 3, 1: -1}, True)
    return UnfinishedAnswer(b"POST", unsent, True, False, {"cadence.created": 7}, [position, None])


def test_what_travels_arrives() -> None:
    handed = [HandedOver(7, answer(b"\0\xff"))]
    assert decode(read_file(write_file(encode(handed)))) == handed


class Looks(HandOver):
    """Sees these answers, one after the other."""

    def __init__(self, *seen: UnfinishedAnswer | None) -> None:
        self._seen = list(seen)

    def _look(self, connection: Any) -> UnfinishedAnswer | None:
        return self._seen.pop(0)


@pytest.mark.parametrize(("second", "is_handed"), [(b"a", True), (b"ab", False)])
def test_a_connection_whose_loop_goes_on_meanwhile_is_not_handed_over(second: bytes, is_handed: bool) -> None:
    """And what the loop writes then does not get to the client in any case."""
    own, client = socket.socketpair()
    dead, other = socket.socketpair()
    other.close()
    with own, client, dead:
        connection: Any = type("Connection", (), {"descriptor": own.fileno()})
        handed = Looks(answer(b"a"), answer(second))._take(connection, dead.fileno())
        with pytest.raises(OSError):
            own.send(b"twice")
        assert len(handed) == is_handed
        for one in handed:
            os.write(one.descriptor, b"once")
            os.close(one.descriptor)
        assert client.recv(9) == (b"once" if is_handed else b"")


def test_the_request_that_a_thread_is_in_is_known() -> None:
    go_on, stuck = threading.Event(), threading.Event()
    mine, others = object(), object()

    def handle(scope: object) -> None:
        stuck.set()
        go_on.wait(60)

    thread = threading.Thread(target=handle, args=(mine,))
    thread.start()
    assert stuck.wait(60)
    suspects = Suspects(thread.ident or 0)
    go_on.set()
    thread.join()
    assert suspects.include_any([others, mine]) and not suspects.include_any([others])


class Wire:
    """A transport whose peer reads as much as is said."""

    def __init__(self) -> None:
        self.written = b""
        self.num_read = 0
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written) - self.num_read

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def test_what_has_not_left_is_known_as_far_as_it_is_kept() -> None:
    wire: Any = Wire()
    tail = SentTail(wire)
    for number in range(100):
        tail.write(b"%d " % number)
        wire.num_read = len(wire.written) - number % 3
        assert tail.unsent() == wire.written[wire.num_read :]
    wire.num_read = 0
    assert tail.unsent() is None
    wire.num_read = len(wire.written)
    tail.trim()
    assert tail.unsent() == b""
    tail.write(b"next")
    tail.trim()
    assert tail.unsent() == b"next"


def test_a_large_piece_is_not_kept_and_what_came_after_it_is() -> None:
    """Else a connection would hold its last answers for as long as it is open."""
    wire: Any = Wire()
    tail = SentTail(wire)
    for _ in range(3):
        tail.write(b"head")
        tail.write(bytes(MAX_PIECE_BYTES + 1))
        tail.write(b"last")
    assert sum(map(len, tail._pieces)) == len(b"last")
    wire.num_read = len(wire.written) - 3
    assert tail.unsent() == b"ast"
    wire.num_read -= 2
    assert tail.unsent() is None


def test_an_answer_that_was_not_caught_up_with_ends_with_what_is_said() -> None:
    wire: Any = Wire()
    cycle: Any = type("Cycle", (), {"transport": wire})()
    gate = AnswerGate(cycle)
    cycle.transport.write(b"known")
    gate.end(b"error")
    assert wire.written == b"5\r\nerror\r\n0\r\n\r\n" and wire.is_closed


def test_an_answer_goes_on_where_its_gate_opens() -> None:
    wire: Any = Wire()
    cycle: Any = type("Cycle", (), {"transport": wire})()
    gate = AnswerGate(cycle)
    cycle.transport.write(b"known")
    gate.open()
    cycle.transport.write(b"new")
    assert wire.written == b"new" and gate.is_open


COMPLETION = b"POST /v1/completions?a=1 HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\nx-request-id: mine\r\n\r\n{}"


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    request_id(HTTPConnection(scope))
    created(scope)
    await asyncio.sleep(3600)


class Seeded:
    """An engine with one request, not read yet."""

    def position(self, engine_id: str) -> StreamPosition:
        return StreamPosition(5, {0: 3}, is_between=True)

    def stream(self, engine_id: str) -> None: ...


async def connected() -> tuple[BoundedHttpProtocol, socket.socket]:
    own, client = socket.socketpair()
    limits = HttpLimits(max_head_bytes=1000, max_headers=10, read_timeout=0.0)
    config = uvicorn.Config(never, lifespan="off", log_config=None)
    config.load()
    given: dict[str, Any] = {"config": config, "server_state": ServerState(), "app_state": {}}
    make = functools.partial(BoundedHttpProtocol, limits, Connections(0.0), **given)
    _, protocol = await asyncio.get_running_loop().connect_accepted_socket(make, own)
    return protocol, client


async def seen_after(data: bytes, resumed: ResumedRequest | None = None) -> UnfinishedAnswer | None:
    """What `HandOver` sees of a connection that has got this."""
    protocol, client = await connected()
    with client:
        if resumed is not None:
            protocol.resume(resumed)
        client.sendall(data)
        for _ in range(50):
            await asyncio.sleep(0)
        llm: Any = Seeded()
        seen = HandOver(lambda scope: llm, Suspects(0))._look(protocol)
        protocol.abort()
        for task in protocol.tasks:
            task.cancel()
        await asyncio.gather(*protocol.tasks, return_exceptions=True)
        return seen


def test_a_request_that_waits_is_run_again_under_its_names() -> None:
    seen = asyncio.run(seen_after(COMPLETION))
    assert seen is not None and not seen.is_begun and not seen.closes
    assert seen.content.startswith(b"POST /v1/completions?a=1 HTTP/1.1\r\n") and seen.content.endswith(b"\r\n\r\n{}")
    assert seen.names.keys() == {REQUEST_ID, CREATED} and seen.names[REQUEST_ID] == "mine"
    again = asyncio.run(seen_after(seen.content))
    assert again is not None and again.content == seen.content


def test_one_that_is_run_again_is_not_run_a_third_time() -> None:
    request = ResumedRequest(b"", COMPLETION, is_begun=False, closes=False, wrap=lambda app, gate: app)
    assert asyncio.run(seen_after(b"", request)) is None


@pytest.mark.parametrize(
    "data",
    [
        b"POST /v1/completions HTTP/1.1\r\nhost:",
        b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-length: 2\r\n\r\n{",
        COMPLETION.replace(b"/v1/completions", b"/v1/load_lora_adapter"),
        COMPLETION.replace(b"/v1/completions", b"/v1/responses"),
    ],
    ids=["part of a head", "part of a body", "a change", "a stored response"],
)
def test_what_cannot_be_run_again_is_left(data: bytes) -> None:
    assert asyncio.run(seen_after(data)) is None


def test_a_connection_without_a_request_is_kept() -> None:
    seen = asyncio.run(seen_after(b""))
    assert seen is not None and not seen.content and not seen.closes


def test_a_connection_ends_with_the_answer_where_another_request_has_come() -> None:
    seen = asyncio.run(seen_after(COMPLETION + COMPLETION))
    assert seen is not None and seen.closes

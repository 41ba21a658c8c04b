"""Chunks of all streams on their way to the network.

They go past the layers around the application, which look at the head of an answer only, and they leave together, once
in a turn of the event loop: sockets written one after the other wake a reader on the same machine once instead of once
per stream, and what one stream says in a turn is one ASGI message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadence.entrypoints.server.http.uvicorn_private import shortcut_for

BODY_WRITER = "cadence.body_writer"  # in the ASGI scope
HIGH_WATER = 65_536  # bytes of one answer that wait for the end of the turn; the transport holds as many


class Outbox:
    """An ASGI layer between the server and the application, one for all connections."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._writers: list[OutboxWriter] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[BODY_WRITER] = writer = OutboxWriter(send, self)
        await self._app(scope, receive, writer.send)

    def add(self, writer: OutboxWriter) -> None:
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._flush)
        self._writers.append(writer)

    def _flush(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()


class BodyWriter(Protocol):
    @property
    def is_ready(self) -> bool:
        """Whether `put` may be called."""
        ...

    def put(self, chunk: bytes) -> None:
        """As `write`, where there is nothing to wait for."""
        ...

    async def write(self, chunk: bytes) -> None:
        """Not empty, and only between the head of the answer and its last message. Waits while the client does not
        read."""


class OutboxWriter:
    """One answer: its head and its last message by `send`, what streams between them by `write`."""

    def __init__(self, send: Send, outbox: Outbox) -> None:
        self._send = send
        self._shortcut = shortcut_for(send)
        self._outbox = outbox
        self._pending = b""
        self._ready = False  # the head is out, the last message is not, and the server takes messages at once
        self._head = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None  # a message that the server did not take at once
        self._error: Exception | None = None  # raised by the server

    async def send(self, message: Message) -> None:
        """A layer may hold the head back: chunks wait for it. None is left after the last message."""
        if message["type"] == "http.response.body" and self._head.is_set():
            await self._until_ready()
            self._ready = message.get("more_body", False)
            message = {**message, "body": self._take() + message.get("body", b"")}
        await self._send(message)
        if message["type"] == "http.response.start":
            self._ready = True
            self._head.set()

    @property
    def is_ready(self) -> bool:
        return self._ready

    async def write(self, chunk: bytes) -> None:
        if not self._ready:
            await self._until_ready()
        self.put(chunk)

    def put(self, chunk: bytes) -> None:
        if self._pending:
            self._pending += chunk
        else:
            self._pending = chunk
            self._outbox.add(self)
        if len(self._pending) > HIGH_WATER:
            self.flush()  # the server says when it has enough

    def flush(self) -> None:
        """A server takes a message at once unless the client does not read; then a task hands it over."""
        pending = self._pending
        if not pending or not self._ready:
            return
        self._pending = b""
        if self._shortcut.write(pending):
            return
        steps = self._send({"type": "http.response.body", "body": pending, "more_body": True}).__await__()
        try:
            waits_for = next(steps)
        except StopIteration:
            return
        except Exception as error:
            self._ready, self._error = False, error
            return
        self._ready = False
        self._sending = asyncio.ensure_future(self._finish(_Begun(steps, waits_for)))

    @property
    def unflushed(self) -> bytes | None:
        """What waits for the end of the turn; None where more waits that cannot be seen."""
        return self._pending if self._ready and self._sending is None else None

    async def settle(self) -> None:
        """All that was put has been handed to the server."""
        self.flush()
        await self._until_ready()

    def _take(self) -> bytes:
        pending, self._pending = self._pending, b""
        return pending

    async def _finish(self, message: _Begun) -> None:
        try:
            await message
            self._ready = True
        except Exception as error:
            self._error = error
        finally:
            self._sending = None

    async def _until_ready(self) -> None:
        await self._head.wait()
        while self._sending is not None:
            await asyncio.wait((self._sending,))
        if self._error is not None:
            raise self._error


class _Begun:
    """An awaitable whose first step was taken outside of a task, to be finished in one."""

    def __init__(self, steps: Generator[Any, None, None], waits_for: Any) -> None:
        self._steps = steps
        self._waits_for = waits_for

    def __await__(self) -> Generator[Any, None, None]:
        yield self._waits_for
        yield from self._steps


class AsgiWriter:
    """Through all layers, one message per chunk: where there is no outbox."""

    is_ready = False

    def __init__(self, send: Send) -> None:
        self._send = send

    async def write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def put(self, chunk: bytes) -> None:
        raise AssertionError("a message has to be waited for")


class NeverReady:
    """Of a stream that has not begun."""

    is_ready = False

    def put(self, chunk: bytes) -> None:
        raise AssertionError("there is no stream")

    async def write(self, chunk: bytes) -> None:
        raise AssertionError("there is no stream")


NEVER_READY = NeverReady()


def writer_of(scope: Scope, send: Send) -> BodyWriter:
    return scope.get(BODY_WRITER) or AsgiWriter(send)

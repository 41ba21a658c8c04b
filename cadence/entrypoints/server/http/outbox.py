"""Chunks of all streams on their way to the network.

They go past the layers around the application, which look at the head of an answer only, and they leave together, once
in a turn of the event loop: sockets written one after the other wake a reader on the same machine once instead of once
per stream, and what one stream says in a turn is one write.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

BODY_WRITER = "cadence.body_writer"  # in the ASGI scope
HIGH_WATER = 65_536  # bytes of one answer that wait for the end of the turn; the transport holds as many


class Outbox:
    """One for all connections of a server."""

    def __init__(self) -> None:
        self._writers: list[OutboxWriter] = []

    def add(self, writer: OutboxWriter) -> None:
        if not self._writers:
            asyncio.get_running_loop().call_soon(self._send)
        self._writers.append(writer)

    def _send(self) -> None:
        writers, self._writers = self._writers, []
        for writer in writers:
            writer.flush()


class BodyWriter(Protocol):
    async def write(self, chunk: bytes) -> None:
        """Not empty, and only after the head of the answer. Waits while the client does not read."""

    def take(self) -> bytes:
        """What was written and has not left."""


class OutboxWriter:
    """The body of one answer of unknown length, past ASGI, by way of the outbox."""

    def __init__(self, cycle: RequestResponseCycle, outbox: Outbox) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._outbox = outbox
        self._pending = b""

    async def write(self, chunk: bytes) -> None:
        if self._flow.write_paused and not self._cycle.disconnected:
            await self._flow.drain()
        if self._pending:
            self._pending += chunk
        else:
            self._pending = chunk
            self._outbox.add(self)
        if len(self._pending) > HIGH_WATER:
            self.flush()  # the transport says when it has enough

    def take(self) -> bytes:
        pending, self._pending = self._pending, b""
        return pending

    def flush(self) -> None:
        pending = self.take()
        if pending and not self._cycle.disconnected:
            self._cycle.transport.write(b"%x\r\n%b\r\n" % (len(pending), pending))


class AsgiWriter:
    """Through plain ASGI, for servers other than ours."""

    def __init__(self, send: Send) -> None:
        self._send = send

    async def write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def take(self) -> bytes:
        return b""


def writer_of(scope: Scope, send: Send) -> BodyWriter:
    return scope.get(BODY_WRITER) or AsgiWriter(send)

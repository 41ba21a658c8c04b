"""Everything of uvicorn that is not documented and is used here, read off the version below; a test holds it to that.

`UvicornHttp` is its HTTP/1.1 protocol, which `connection.py` bounds. `shortcut_for` frames a chunk of an answer and
writes it to the transport without an ASGI message: a message costs 0.8 µs more, 4 % of what the server spends on a
streamed token. Where the server is another one, or a version that lacks these attributes, there is no shortcut, and the
same bytes leave as messages. `SentTail` knows what was written and has not left, `AnswerState` what another server
needs to run a request again, and `AnswerGate` keeps what that server makes of it from being written twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HOLDS_FOR = "0.54"
MAX_PIECES = 8  # of one connection, which writes one in most turns of the loop
MAX_PIECE_BYTES = 2**17  # of one that is kept: twice what a stream writes at once
_OF_CYCLE = ("disconnected", "chunked_encoding", "response_complete", "flow", "transport")


class SentTail:
    """A transport that keeps the last pieces that were written: what has not left is their end, unless the peer reads
    too slowly for them to reach that far. 0.1 µs a piece."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._size = transport.get_write_buffer_size  # bytes that have not left
        self._pieces: deque[bytes] = deque(maxlen=MAX_PIECES)
        self.keep = self._pieces.append  # `write` is `keep` and `send`
        self.send = transport.write
        self.close = transport.close
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        """What is too large to be kept cannot be told, nor what was written before it."""
        if len(data) > MAX_PIECE_BYTES:
            self._pieces.clear()
        else:
            self.keep(data)
        self.send(data)

    def unsent(self) -> bytes | None:
        """None = it cannot be told."""
        count, known = self._size(), b"".join(self._pieces)
        return None if count > len(known) else known[len(known) - count :]

    def trim(self) -> None:
        """Forgets the pieces where all of them have left."""
        if not self._size():
            self._pieces.clear()


@dataclass(frozen=True, slots=True)
class AnswerState:
    """Of the request that is answered on a connection."""

    scope: Scope
    body: bytes | None  # of the request; None = it was not kept, or has not arrived
    is_begun: bool  # its head was written
    is_complete: bool
    is_chunked: bool
    is_newest: bool  # no other request has come after it
    unsent: bytes | None  # None = it cannot be told


class UvicornHttp(HttpToolsProtocol):
    """A connection. Several requests may have come: one is answered, the newest may still arrive."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    root_path: str
    url: bytes = b""  # of the newest request
    headers: list[tuple[bytes, bytes]]  # of the newest request; None before the first
    _answering: RequestResponseCycle | None = None  # the request that is answered, or was the last to be
    _tail: SentTail

    def keeps_body(self, scope: Scope) -> bool:
        """Whether `answer_state` is to have the body of a request whose head has come."""
        return False

    def may_keep(self, num_bytes: int) -> bool:
        """Whether so many more bytes of a body may be kept; where they may, `forget_kept` follows."""
        return False

    def forget_kept(self, num_bytes: int) -> None: ...

    def app_for_request(self, app: ASGIApp) -> ASGIApp:
        """Called when the answer of a request begins -> what answers it."""
        return app

    def close_after_answer(self) -> None:
        """Of the request that is answered."""
        if self._answering is not None:
            self._answering.keep_alive = False

    @property
    def is_writing_paused(self) -> bool:
        return bool(self.flow.write_paused)

    @property
    def is_reading_paused(self) -> bool:
        return bool(self.flow.read_paused)

    @property
    def is_newest_answered(self) -> bool:
        """Also where there was no request."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_newest_over(self) -> bool:
        """Nothing more is written for it."""
        return self.is_newest_answered or self.cycle.disconnected

    def drop_newest_unless_begun(self) -> None:
        """The route that waits for its body sees that the client has left."""
        if not self.cycle.response_started:
            self.cycle.disconnected = True
            self.cycle.message_event.set()

    @property
    def answer_state(self) -> AnswerState | None:
        """None = no request has come, or its client has left."""
        cycle = self._answering
        if cycle is None or cycle.disconnected:
            return None
        kept = cycle.kept if not cycle.more_body else None
        return AnswerState(
            scope=cycle.scope,
            body=None if kept is None else bytes(kept),
            is_begun=cycle.response_started,
            is_complete=cycle.response_complete,
            is_chunked=bool(cycle.chunked_encoding),
            is_newest=cycle is self.cycle,
            unsent=self._tail.unsent(),
        )

    def gate_answer(self) -> AnswerGate:
        """To be called from `app_for_request`."""
        return AnswerGate(self._answering)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._tail = SentTail(transport)

    def on_headers_complete(self) -> None:
        before = self.cycle
        super().on_headers_complete()
        if self.cycle is not before:
            self.cycle.kept = bytearray() if self.keeps_body(self.cycle.scope) else None

    def on_body(self, body: bytes) -> None:
        super().on_body(body)
        kept = self.cycle.kept
        if kept is not None:
            if self.may_keep(len(body)):
                kept += body
            else:
                self._forget(self.cycle)

    def on_response_complete(self) -> None:
        self._forget(self._answering)
        self.loop.call_soon(self._tail.trim)  # when what was written now has left
        super().on_response_complete()

    def _forget(self, cycle: Any) -> None:
        if cycle is not None and cycle.kept is not None:
            self.forget_kept(len(cycle.kept))
            cycle.kept = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        for cycle in (self.cycle, self._answering, *(waiting for waiting, _ in self.pipeline)):
            self._forget(cycle)
        if self._answering is not None:  # a request may have come after the one that is answered
            self._answering.disconnected = not self._answering.response_complete
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        cycle.transport = self._tail  # type: ignore[assignment]
        super()._start_asgi_task(cycle, self.app_for_request(app))


class AnswerGate:
    """Drops what is written of an answer until it is opened, in place of its transport."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._transport = cycle.transport
        self._is_open = False
        self.is_closing = self._transport.is_closing
        cycle.transport = self

    def open(self) -> None:
        self._is_open = True
        self._cycle.transport = self._transport

    @property
    def is_open(self) -> bool:
        return self._is_open

    def end(self, last: bytes) -> None:
        """Ends the answer, and the connection, with `last`."""
        if not self.is_closing():
            self._transport.write(b"%x\r\n%b\r\n0\r\n\r\n" % (len(last), last))
            self._transport.close()

    def write(self, data: bytes) -> None:
        """It has left already."""

    keep = send = write

    def close(self) -> None:
        """`end` does."""


class OpenGate:
    """Of an answer of which nothing was written before."""

    is_open = True

    def open(self) -> None: ...

    def end(self, last: bytes) -> None: ...


class Shortcut(Protocol):
    def write(self, body: bytes) -> bool:
        """Whether it went out; if not, it is to be sent as a message."""


class UvicornChunks:
    """One answer, by its `RequestResponseCycle`."""

    def __init__(self, cycle: Any) -> None:
        self._cycle = cycle
        self._flow = cycle.flow

    def write(self, body: bytes) -> bool:
        cycle = self._cycle
        if self._flow.write_paused or cycle.disconnected or cycle.response_complete or not cycle.chunked_encoding:
            return False
        piece, transport = b"%x\r\n%b\r\n" % (len(body), body), cycle.transport
        transport.keep(piece)
        transport.send(piece)
        return True


class NoShortcut:
    def write(self, body: bytes) -> bool:
        return False


def shortcut_for(send: Send) -> Shortcut:
    """`send` is the server's own, as it calls the application."""
    cycle = getattr(send, "__self__", None)
    known = all(hasattr(cycle, name) for name in _OF_CYCLE) and hasattr(cycle.flow, "write_paused")
    known = known and isinstance(cycle.transport, SentTail | AnswerGate)
    return UvicornChunks(cycle) if known else NoShortcut()

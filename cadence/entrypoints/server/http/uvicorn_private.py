"""Everything of uvicorn that is not documented and is used here, read off the version below; a test holds it to that.

`UvicornHttp` is its HTTP/1.1 protocol, which `connection.py` bounds. `shortcut_for` frames a chunk of an answer and
writes it to the transport without an ASGI message: a message costs 0.8 µs more, 4 % of what the server spends on a
streamed token. Where the server is another one, or a version that lacks these attributes, there is no shortcut, and the
same bytes leave as messages.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from starlette.types import ASGIApp, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

HOLDS_FOR = "0.54"
_OF_CYCLE = ("disconnected", "chunked_encoding", "response_complete", "flow", "transport")


class UvicornHttp(HttpToolsProtocol):
    """A connection. Several requests may have come: one is answered, the newest may still arrive."""

    loop: asyncio.AbstractEventLoop
    transport: asyncio.Transport
    root_path: str
    url: bytes = b""  # of the newest request
    headers: list[tuple[bytes, bytes]]  # of the newest request; None before the first
    _answering: RequestResponseCycle | None = None  # the request that is answered, or was the last to be

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

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._answering is not None:  # a request may have come after the one that is answered
            self._answering.disconnected = not self._answering.response_complete
            self._answering.message_event.set()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answering = cycle
        super()._start_asgi_task(cycle, self.app_for_request(app))


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
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(body), body))
        return True


class NoShortcut:
    def write(self, body: bytes) -> bool:
        return False


def shortcut_for(send: Send) -> Shortcut:
    """`send` is the server's own, as it calls the application."""
    cycle = getattr(send, "__self__", None)
    known = all(hasattr(cycle, name) for name in _OF_CYCLE) and hasattr(cycle.flow, "write_paused")
    return UvicornChunks(cycle) if known else NoShortcut()

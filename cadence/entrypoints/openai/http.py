"""HTTP/1.1 by httptools, which sets no bounds of its own: the head of a request and the time a client takes to send
one are bounded here, and what cannot be parsed is answered in the shape of every other error."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cadence.entrypoints.openai.errors import ErrorReply
from cadence.entrypoints.openai.options import ServeOptions
from cadence.entrypoints.openai.outbox import CHUNK_WRITER, ChunkWriter, Outbox


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_head_bytes: int
    max_headers: int
    read_timeout: float  # seconds for a whole request to arrive; 0 = no limit

    @classmethod
    def of(cls, options: ServeOptions) -> HttpLimits:
        return cls(options.max_header_bytes, options.max_header_count, options.read_timeout)


class LimitedHttp(HttpToolsProtocol):
    def __init__(self, limits: HttpLimits, outbox: Outbox, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._outbox = outbox
        self._in_head = True
        self._head_bytes = 0  # received of a head that is not complete
        self._refused = False
        self._late: asyncio.TimerHandle | None = None  # runs while a request is awaited or arrives

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began_in_head = self._in_head
        super().data_received(data)
        if began_in_head and self._in_head and not self._refused:
            self._head_bytes += len(data)
            self._check_head(self._head_bytes, len(self.headers or ()))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._check_head(size, len(self.headers))
        if not self._refused:
            super().on_headers_complete()
            self.scope[CHUNK_WRITER] = ChunkWriter(self.cycle, self._outbox)  # type: ignore[typeddict-unknown-key]

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP.")

    def _check_head(self, size: int, count: int) -> None:
        if size > self._limits.max_head_bytes:
            self._refuse(
                431, f"The request's headers are larger than the limit of {self._limits.max_head_bytes} bytes."
            )
        elif count > self._limits.max_headers:
            self._refuse(431, f"The request has more than {self._limits.max_headers} headers.")

    def _await_request(self) -> None:
        self._stop_waiting()
        if self._limits.read_timeout:
            self._late = self.loop.call_later(self._limits.read_timeout, self._on_late)

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _on_late(self) -> None:
        """A client that is not being read, because it was sent nothing yet, is not late."""
        answering = self.cycle is not None and not self.cycle.response_complete
        if self.flow.read_paused or (answering and self._in_head):
            self._await_request()
            return
        if answering and not self.cycle.response_started:
            self.cycle.disconnected = True  # so it is for whoever waits for the body
            self.cycle.message_event.set()
        self._refuse(408, f"The request did not arrive within the limit of {self._limits.read_timeout:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers at once and hangs up; only hangs up where an earlier answer is still on its way."""
        if self._refused:
            return
        self._refused = True
        if self.cycle is None or self.cycle.response_complete or self.cycle.disconnected:
            content = ErrorReply(status, message).content()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()

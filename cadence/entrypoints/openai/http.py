"""HTTP/1.1 by httptools, which sets no bounds of its own: the head of a request is bounded here, and what cannot be
parsed is answered in the shape of every other error."""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from cadence.entrypoints.openai.errors import ErrorReply


@dataclass(frozen=True, slots=True)
class HeadLimits:
    max_bytes: int
    max_headers: int


class LimitedHttp(HttpToolsProtocol):
    def __init__(self, limits: HeadLimits, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._in_head = True
        self._head_bytes = 0  # received of a head that is not complete
        self._refused = False

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
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._check_head(size, len(self.headers))
        if not self._refused:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        if not self._refused:
            super().on_message_complete()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP.")

    def _check_head(self, size: int, count: int) -> None:
        if size > self._limits.max_bytes:
            self._refuse(431, f"The request's headers are larger than the limit of {self._limits.max_bytes} bytes.")
        elif count > self._limits.max_headers:
            self._refuse(431, f"The request has more than {self._limits.max_headers} headers.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers at once and hangs up; only hangs up where an earlier answer is still on its way."""
        if self._refused:
            return
        self._refused = True
        if self.cycle is None or self.cycle.response_complete:
            content = ErrorReply(status, message).content()
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()

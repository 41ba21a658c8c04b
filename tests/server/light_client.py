"""A client that costs next to nothing: it keeps its connection and reads only the status and where an answer ends."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any
from urllib.parse import urlsplit

_LAST_CHUNK = b"0\r\n\r\n"


def post_bytes(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return head.encode() + b"\r\n\r\n" + data


def get_bytes(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "host: localhost", *headers, "", "")).encode()


class LightClient(asyncio.Protocol):
    """One connection, one request at a time. `status`, `first_byte` (seconds) and `tail` speak of the last one."""

    def __init__(self) -> None:
        self.status = 0
        self.first_byte = 0.0
        self.tail = b""  # the last bytes of the answer, enough for [DONE]
        self._transport: Any = None
        self._answered: asyncio.Future[None] | None = None
        self._sent = 0.0
        self._head = b""
        self._left = 0  # bytes of the body still to come; -1 = chunked

    @classmethod
    async def connect(cls, url: str) -> LightClient:
        parts = urlsplit(url)
        _, client = await asyncio.get_running_loop().create_connection(cls, parts.hostname, parts.port)
        return client

    async def ask(self, request: bytes) -> int:
        """Sends a whole request; gives the status of the answer once all of it is there."""
        self.status, self._head, self.tail = 0, b"", b""
        self._answered = asyncio.get_running_loop().create_future()
        self._sent = time.perf_counter()
        self._transport.write(request)
        await self._answered
        return self.status

    def close(self) -> None:
        self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self.status:
            data = self._read_head(data)
        if self._left > 0:
            self._left -= len(data)
        self.tail = (self.tail + data)[-32:] if len(data) < 32 else data[-32:]
        if self.status and (self._left == 0 or (self._left < 0 and self.tail.endswith(_LAST_CHUNK))):
            self._end(None)

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error or ConnectionResetError("the server closed the connection"))

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head, once it is whole."""
        if not self._head:
            self.first_byte = time.perf_counter() - self._sent
        self._head += data
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return b""
        self.status = int(head[9:12])
        _, found, length = head.lower().partition(b"content-length:")
        self._left = int(length.split(b"\r\n", 1)[0]) if found else -1
        return rest

    def _end(self, error: Exception | None) -> None:
        if self._answered is not None and not self._answered.done():
            if error is None:
                self._answered.set_result(None)
            else:
                self._answered.set_exception(error)

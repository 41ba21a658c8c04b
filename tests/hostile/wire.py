"""HTTP as bytes: requests as right or wrong as a case wants them, and answers read to their end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

_CHUNK = 65536
JSON = ("content-type", "application/json")


@dataclass(frozen=True)
class Request:
    method: str
    target: str
    headers: Sequence[tuple[str, str]] = (JSON,)
    body: bytes = b""
    chunk: int = 0  # > 0: sent in chunks of this many bytes, without a length
    declared: str | None = None  # a content-length of its own
    half: bool = False  # the body ends early: nothing more is sent

    def head(self) -> bytes:
        lines = [f"{self.method} {self.target} HTTP/1.1", "host: localhost"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.chunk:
            lines.append("transfer-encoding: chunked")
        elif self.declared is not None or self.body or self.method == "POST":
            lines.append(f"content-length: {len(self.body) if self.declared is None else self.declared}")
        return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape")

    def pieces(self) -> list[bytes]:
        if not self.chunk:
            return [self.head(), self.body]
        parts = [self.body[start : start + self.chunk] for start in range(0, len(self.body), self.chunk)]
        return [self.head(), *(b"%x\r\n%b\r\n" % (len(part), part) for part in parts), b"0\r\n\r\n"]


@dataclass
class Answer:
    """`end`: "whole", "closed" before the end, "timeout", or "left" by the client itself."""

    status: int = 0  # 0 = none came
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    end: str = "closed"
    began: float = 0.0  # monotonic seconds
    seconds: float = 0.0


class Connection:
    """One connection, opened when it is needed and kept while the server keeps it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address = parts.hostname or "", parts.port or 80
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self, request: Request, deadline: float, leave_after: int | None = None) -> Answer:
        """Sends a request and reads its answer, or only `leave_after` bytes of it. Never raises for what a server
        does."""
        answer = Answer(began=time.monotonic())
        reused = self._writer is not None
        try:
            async with asyncio.timeout(deadline):
                await self._exchange(request, answer, leave_after)
                if reused and answer.end == "closed" and not answer.status:  # it was closed while it was idle
                    self.drop()
                    await self._exchange(request, answer, leave_after)
        except TimeoutError:
            answer.end = "timeout"
        except OSError:
            answer.end = "closed"
        answer.seconds = time.monotonic() - answer.began
        if answer.end != "whole" or answer.headers.get("connection", "").lower() == "close":
            self.drop()
        return answer

    def drop(self) -> None:
        if self._writer is not None:
            self._writer.transport.abort()
        self._reader = self._writer = None

    async def _exchange(self, request: Request, answer: Answer, leave_after: int | None) -> None:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(*self._address, limit=2**20)
        sending = asyncio.create_task(_send(self._writer, request.pieces()))
        try:
            if request.half:
                await asyncio.wait({sending}, timeout=1.0)
                answer.end = "left"
            elif leave_after is not None:
                await _read_some(self._reader, answer, leave_after)
            else:
                await _read_answer(self._reader, answer)
        except (asyncio.IncompleteReadError, ConnectionError, ValueError):
            answer.end = "closed"
        finally:
            sending.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await sending


async def _send(writer: asyncio.StreamWriter, pieces: list[bytes]) -> None:
    for piece in pieces:
        for start in range(0, len(piece), _CHUNK):
            writer.write(piece[start : start + _CHUNK])
            await writer.drain()


async def _read_some(reader: asyncio.StreamReader, answer: Answer, count: int) -> None:
    taken = b""
    while len(taken) < count:
        piece = await reader.read(count - len(taken))
        if not piece:
            break
        taken += piece
    if taken.startswith(b"HTTP/1.1 "):
        answer.status = int(taken[9:12] or b"0")
    answer.end = "left"


async def _read_answer(reader: asyncio.StreamReader, answer: Answer) -> None:
    status = 100
    while status < 200:  # 100 Continue is not the answer
        head = await reader.readuntil(b"\r\n\r\n")
        status = int(head[9:12])
    answer.status = status
    for line in head.decode("latin-1").split("\r\n")[1:]:
        name, _, value = line.partition(":")
        answer.headers[name.lower()] = value.strip()
    if "chunked" in answer.headers.get("transfer-encoding", ""):
        answer.body = await _read_chunks(reader)
    elif "content-length" in answer.headers:
        answer.body = await reader.readexactly(int(answer.headers["content-length"]))
    answer.end = "whole"


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts = []
    while size := int((await reader.readuntil(b"\r\n")).strip(), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)

"""Answers on the wire: JSON at once, or server-sent events as they come."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cadence.entrypoints.server.http.admission import AdmittedRequest
from cadence.entrypoints.server.http.direct import NOT_DIRECT, WriterPort
from cadence.entrypoints.server.http.errors import reply_for, route_path
from cadence.entrypoints.server.http.outbox import BodyWriter, writer_of

logger = logging.getLogger("cadence.server")

DONE = b"data: [DONE]\n\n"

T = TypeVar("T")
encode_json = msgspec.json.Encoder().encode


class ChunkEncoder:
    """Encodes the chunks of one stream. All but a few are text of one choice, and those cost one small encoding."""

    def __init__(self, base: dict[str, Any], around: tuple[str, str], with_usage: bool) -> None:
        """`base` is what all chunks begin with; `around` the JSON of a choice before and after its text."""
        before, after = around
        self._base = base
        self._usage: dict[str, Any] = {"usage": None} if with_usage else {}
        self._before_index = b"data: " + encode_json(base)[:-1] + b',"choices":[{"index":'
        self._after_index = b"," + before.encode()
        self._tail = after.encode() + b"}]%s}\n\n" % (b',"usage":null' if with_usage else b"")
        self._heads: dict[int, bytes] = {}

    def text(self, index: int, text: str) -> bytes:
        head = self._heads.get(index)
        if head is None:
            head = self._heads[index] = self._before_index + b"%d" % index + self._after_index
        return head + encode_json(text) + self._tail

    def choice(self, choice: dict[str, Any], **more: Any) -> bytes:
        return event({**self._base, "choices": [choice], **self._usage, **more})

    def usage(self, usage: dict[str, Any]) -> bytes:
        return event({**self._base, "choices": [], "usage": usage})


class Pings(NamedTuple):
    content: bytes
    seconds: float  # of silence before each


class EventStream(Response):
    """Writes chunks as they come and stops, closing their source, within one chunk of the client's leaving.

    `last` is written after the last chunk. An error is written as an event of its own, and then nothing more.
    Where there are `pings`, one is written when nothing else was for a while, so that no proxy closes the connection.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        last: bytes = DONE,
        pings: Pings | None = None,
        direct: WriterPort = NOT_DIRECT,
    ) -> None:
        """direct: writes chunks itself while `chunks` is waited for"""
        super().__init__(headers={"cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._chunks = chunks
        self._last = last
        self._pings = pings
        self._direct = direct
        self._quiet = False  # nothing was written since it was last set

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer = writer_of(scope, send)
        tasks = [asyncio.ensure_future(self._write(route_path(scope), send, writer))]
        tasks.append(asyncio.ensure_future(_disconnected(receive)))
        if self._pings is not None:
            tasks.append(asyncio.ensure_future(self._ping(self._pings, writer)))
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await _end(*tasks)

    async def _write(self, path: str, send: Send, writer: BodyWriter) -> None:
        async with aclosing(self._chunks) as chunks:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            last = self._last
            try:
                async for chunk in chunks:
                    await writer.write(chunk)
                    self._quiet = False
                    self._direct.connect(writer)
            except Exception as error:
                last = error_event(error, path)
            await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _ping(self, pings: Pings, writer: BodyWriter) -> None:
        """A stream begins with a chunk, so the head is out by the time of the first ping."""
        while True:
            self._quiet = True
            await asyncio.sleep(pings.seconds)
            if self._quiet:
                await writer.write(pings.content)


def event(content: Any) -> bytes:
    return b"data: " + encode_json(content) + b"\n\n"


def error_event(error: Exception, path: str) -> bytes:
    reply = reply_for(error)
    if reply.is_bug:
        logger.error("a stream on %s broke", path, exc_info=error)
    return b"data: " + reply.content(path) + b"\n\n"


def json_response(content: Any) -> Response:
    return Response(encode_json(content), media_type="application/json")


async def admitted(
    entry: AdmittedRequest, source: AsyncIterator[T], check: Callable[[T], None]
) -> AsyncGenerator[T, None]:
    """`source`, whose end, good or bad, is the entry's. `check` raises on an item that tells of a failure."""
    async with entry, aclosing(source) as items:  # type: ignore[type-var]
        async for item in items:
            check(item)
            yield item


async def checked(source: AsyncGenerator[T, None], check: Callable[[T], None]) -> AsyncGenerator[T, None]:
    """One of several sources that share an entry."""
    async with aclosing(source) as items:
        async for item in items:
            check(item)
            yield item


async def started_stream(source: AsyncGenerator[T, None]) -> StartedStream[T]:
    """`source`, once it has something to say: what goes wrong before raises here, not in the stream."""
    return StartedStream(await anext(source), source)


class StartedStream(Generic[T]):
    """A source and the item that was already taken from it. After that item it is out of the way."""

    def __init__(self, first: T, rest: AsyncGenerator[T, None]) -> None:
        self._first = [first]
        self._rest = rest

    def __aiter__(self) -> StartedStream[T]:
        return self

    def __anext__(self) -> Awaitable[T]:
        return self._give_first() if self._first else self._rest.__anext__()

    async def aclose(self) -> None:
        await self._rest.aclose()

    async def _give_first(self) -> T:
        return self._first.pop()


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

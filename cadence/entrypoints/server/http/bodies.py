"""Bodies from their bytes to what a route makes of them: counted, parsed and checked.

A small body is read on the event loop, where that takes less time than handing it over. Large ones are read by one
thread, one after the other in the order of their coming: between two of its steps the event loop has its turn, and
between two bodies several; the limits on what JSON may hold bound the longest step.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import HTTPConnection

from cadence.core.memory import give_back_memory
from cadence.entrypoints.media.pending import PendingMedia
from cadence.entrypoints.server.http.body_budget import BodyShare
from cadence.entrypoints.server.http.errors import unavailable
from cadence.entrypoints.server.http.json_limits import JsonLimits, check_json

BODY = "cadence.body"  # in the ASGI scope: the `Body` of this HTTP request
SMALL_BODY = 2**16  # bytes
READ_S = 60.0  # for a large body to be parsed and checked, the wait for its turn included
PAUSE_S = 0.01  # between two large bodies: an answer takes the event loop more turns than one
TRIM_S = 2.0  # after a large body, free memory goes back to the system, but no more often than this

T = TypeVar("T")


class Body:
    """The bytes of a body until they are taken, and their share of the budget."""

    def __init__(self, content: bytes, share: BodyShare) -> None:
        self.size = len(content)
        self.share = share
        self._content = content

    @property
    def content(self) -> bytes:
        """What is there to be taken."""
        return self._content

    def take(self) -> bytes:
        """Once; there is nothing left then."""
        content, self._content = self._content, b""
        return content


def free_when_read(request: HTTPConnection, media: PendingMedia) -> None:
    """The share of a body that was read with `held` is free once its media are read; at once where it has none."""
    share = request.scope[BODY].share
    if media.is_empty:
        share.free()
    else:
        media.when_read(share.free)


class BodyReader:
    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "cadence-bodies")
        self._trims = False  # soon

    async def read(self, request: HTTPConnection, make: Callable[[bytes], T], held: bool = False) -> T:
        """What `make` makes of the body; it must touch nothing that belongs to the event loop.

        The body's share of the budget is free afterwards: admission counts the requests it accepts. `held` keeps the
        share until the request ends, for routes without admission.
        """
        body: Body = request.scope[BODY]
        try:
            return await self.run(body.size, self._make, body, make)
        finally:
            if not held:
                body.share.free()

    async def run(self, size: int, function: Callable[..., T], *arguments: object) -> T:
        """Other work on what came in a body of this many bytes."""
        if size <= SMALL_BODY:
            return function(*arguments)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(READ_S):
                return await loop.run_in_executor(self._thread, _and_pause, function, *arguments)
        except TimeoutError:
            raise unavailable("The server is still reading other large request bodies; try again later.") from None
        finally:
            if not self._trims:
                self._trims = True
                loop.call_later(TRIM_S, self._trim)

    def _trim(self) -> None:
        self._trims = False
        self._thread.submit(give_back_memory)

    def _make(self, body: Body, make: Callable[[bytes], T]) -> T:
        content = body.take()
        check_json(content, self._limits)
        return make(content)


def _and_pause(function: Callable[..., T], *arguments: object) -> T:
    try:
        return function(*arguments)
    finally:
        time.sleep(PAUSE_S)

"""Memory for the bodies of all connections together, and how one of them is read."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from cadence.entrypoints.server.http.errors import ApiError, unavailable

UNBUDGETED_BYTES = 2**16  # of every body are read outside the budget: small requests never wait for large ones
CHUNK_BYTES = 2**18  # what one message of a connection holds at most, or little more
_DRAIN_FACTOR = 4  # of a body that is too large, this much more is read and dropped before the client is cut off


class BodyBudget:
    """Bytes of bodies that were received and are still needed.

    Where the limit is reached, bodies are not read on and TCP makes their clients wait for the end of complete ones.
    Where there is none of these, the oldest grows beyond the limit, so that it becomes complete: at most `limit` and
    one body are held.
    """

    def __init__(self, limit: int, max_wait: float) -> None:
        """`max_wait`: seconds a body waits for memory to be read on; 0 = no limit."""
        self.held = 0
        self._limit = limit
        self._max_wait = max_wait
        self._arriving: dict[BodyShare, asyncio.Future[None] | None] = {}  # oldest first -> what it waits for
        self._complete: set[BodyShare] = set()  # and held

    def may_grow(self, share: BodyShare) -> bool:
        if self.held + CHUNK_BYTES <= self._limit:
            return True
        return not self._complete and next(iter(self._arriving)) is share

    async def reserve(self, share: BodyShare) -> None:
        self._arriving.setdefault(share, None)
        try:
            async with asyncio.timeout(self._max_wait or None):
                while not self.may_grow(share):
                    waiter = self._arriving[share] = asyncio.get_running_loop().create_future()
                    await waiter
        except TimeoutError:
            raise unavailable("The server holds as many large request bodies as it may; try again later.") from None
        finally:
            self._arriving[share] = None
        share.add(CHUNK_BYTES)
        self.wake()

    def complete(self, share: BodyShare) -> None:
        """It grows no more."""
        self._arriving.pop(share, None)
        self._complete.add(share)
        self.wake()

    def forget(self, share: BodyShare) -> None:
        self._arriving.pop(share, None)
        self._complete.discard(share)
        self.wake()

    def wake(self) -> None:
        """The oldest that may go on, which wakes the next."""
        for share, waiter in self._arriving.items():
            if waiter is not None and not waiter.done() and self.may_grow(share):
                waiter.set_result(None)
                return


class BodyShare:
    """What one body takes of the budget."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._reserved = 0
        self._size = 0  # with what is reserved

    async def reserve(self) -> None:
        """Before the next message is received."""
        if self._size >= UNBUDGETED_BYTES:
            await self._budget.reserve(self)
            self._reserved = CHUNK_BYTES

    def put(self, size: int) -> None:
        """So many bytes were received."""
        self.add(size - self._reserved)
        if size < self._reserved:
            self._budget.wake()
        self._reserved = 0

    def complete(self) -> None:
        self._budget.complete(self)

    def free(self) -> None:
        """The body is no longer needed. May be called twice."""
        self.add(-self._size)
        self._budget.forget(self)

    def add(self, size: int) -> None:
        self._size += size
        self._budget.held += size


async def chunks_of(
    headers: Headers, receive: Receive, share: BodyShare, limit: int, too_large: ApiError
) -> AsyncGenerator[bytes, None]:
    """A body of at most `limit` bytes as it comes. One that is larger is read to its end, or long enough that its
    client hears the answer, which is `too_large`."""
    declared = headers.get("content-length", "")
    is_too_large = declared.isdecimal() and int(declared[:20]) > limit
    if is_too_large and headers.get("expect", "").lower() == "100-continue":
        raise too_large
    size, more = 0, True
    while more and size <= limit * (1 + _DRAIN_FACTOR):
        await share.reserve()
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        more = message.get("more_body", False)
        chunk = message.get("body", b"")
        size += len(chunk)
        is_too_large = is_too_large or size > limit
        share.put(0 if is_too_large else len(chunk))
        if not is_too_large:
            yield chunk
    if is_too_large:
        raise too_large

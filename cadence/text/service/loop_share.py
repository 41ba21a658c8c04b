"""How much work one turn of an event loop may do, for all requests together: of text, and of requests that begin."""

from __future__ import annotations

import asyncio
from collections import deque

LEAST = 64  # characters that any work counts for: calls and templates take their time, however short the text
BEGUN_AT_ONCE = 16  # requests; each takes 0.2 ms to be checked and sent


class LoopShare:
    def __init__(self, limit: int) -> None:
        self._limit = limit  # characters
        self._used = 0  # in this turn

    def take(self, size: int) -> bool:
        """Whether so much may be done at once. What may not is for a thread."""
        size = max(size, LEAST)
        if self._used + size > self._limit:
            return False
        if not self._used:
            asyncio.get_running_loop().call_soon(self._renew)
        self._used += size
        return True

    def _renew(self) -> None:
        self._used = 0


class LoopTurns:
    """A turn begins so many requests, or twice as many after a wait; others wait for later turns, in their order."""

    def __init__(self, limit: int = BEGUN_AT_ONCE) -> None:
        self._limit = limit
        self._begun = 0  # in this turn
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def enter(self) -> None:
        """Returns at once while this turn has room."""
        loop = asyncio.get_running_loop()
        if self._begun == self._limit or self._waiting:
            self._waiting.append(loop.create_future())
            return await self._waiting[-1]
        if not self._begun:
            loop.call_soon(self._next)
        self._begun += 1

    def _next(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._limit:
            waiter = self._waiting.popleft()
            if not waiter.done():  # cancelled
                waiter.set_result(None)
                self._begun += 1
        if self._begun:
            asyncio.get_running_loop().call_soon(self._next)

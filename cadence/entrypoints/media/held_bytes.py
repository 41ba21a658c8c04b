"""Memory that large things take together, and a turn for each to wait for its share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class HeldBytes:
    """At most `most` bytes are held, or one thing that is larger. First come, first served. Of one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()  # bytes, and what the wait ends by

    @asynccontextmanager
    async def share(self, size: int) -> AsyncGenerator[None, None]:
        await self.take(size)
        try:
            yield
        finally:
            self.give_back(size)

    async def take(self, size: int) -> None:
        """`give_back` must follow."""
        if self._waiting or not self._fits(size):
            waiter = asyncio.get_running_loop().create_future()
            self._waiting.append((size, waiter))
            try:
                await waiter
            except BaseException:
                self._leave(size, waiter)
                raise
        else:
            self._held += size

    def give_back(self, size: int) -> None:
        self._held -= size
        self._wake()

    def _fits(self, size: int) -> bool:
        return not self._held or self._held + size <= self._most

    def _leave(self, size: int, waiter: asyncio.Future[None]) -> None:
        if waiter.done() and not waiter.cancelled():
            self._held -= size  # it was let in, and then cancelled
        else:
            self._waiting.remove((size, waiter))
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._fits(self._waiting[0][0]):
            size, waiter = self._waiting.popleft()
            if waiter.done():  # cancelled, and about to leave
                self._waiting.appendleft((size, waiter))
                return
            self._held += size
            waiter.set_result(None)

"""The events of a response that runs in the background, for clients that read them now, later, or again."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

MAX_LOG_BYTES = 16 * 2**20  # of one response
MOST_AT_ONCE = 2**18  # bytes that one look at a log brings, unless one event has more


class EventLog:
    """Events as bytes; the place of each is its sequence number. A log that grows too large loses all it has."""

    keeps = True

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.events: list[bytes] = []
        self.is_lost = False
        self.is_closed = False
        self._left = max_bytes
        self._changed = asyncio.Event()

    def add(self, events: Sequence[bytes]) -> None:
        self._left -= sum(map(len, events))
        if self._left < 0:
            self.is_lost, self.events = True, []
        if not self.is_lost:
            self.events.extend(events)
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    async def until_there(self, start: int) -> None:
        """Returns when there are events from this number on, or there will be none."""
        while len(self.events) <= start and not self.is_closed and not self.is_lost:
            await self._changed.wait()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class NullLog(EventLog):
    """Of a response whose events cannot be read again."""

    keeps = False

    def add(self, events: Sequence[bytes]) -> None:
        pass


def events_from(events: Sequence[bytes], start: int) -> list[bytes]:
    """As many as are read at once."""
    size, end = 0, start
    while end < len(events) and (size < MOST_AT_ONCE or end == start):
        size += len(events[end])
        end += 1
    return list(events[start:end])

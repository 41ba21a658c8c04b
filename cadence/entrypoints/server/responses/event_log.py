"""The events of a response that runs in the background, for clients that read them now, later, or again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.stream import encode_json
from cadence.entrypoints.server.protocol.responses_answer import StreamEvent

MAX_LOG_BYTES = 16 * 2**20  # of one response


class EventLog:
    """Events as bytes; the place of each is its sequence number. A log that grows too large loses all it has."""

    def __init__(self, max_bytes: int = MAX_LOG_BYTES) -> None:
        self.events: list[bytes] = []
        self.is_lost = False
        self.is_closed = False
        self._left = max_bytes
        self._changed = asyncio.Event()

    def add(self, event: bytes) -> None:
        self._left -= len(event)
        if self._left < 0:
            self.is_lost, self.events = True, []
        if not self.is_lost:
            self.events.append(event)
        self._wake()

    def close(self) -> None:
        self.is_closed = True
        self._wake()

    async def read(self, start: int) -> AsyncGenerator[bytes, None]:
        """From the event with this number on, until there will be no more."""
        while True:
            changed = self._changed
            self.check()
            chunk = b"".join(self.events[start:])
            start = max(start, len(self.events))
            if chunk:
                yield chunk
            elif self.is_closed:
                return
            else:
                await changed.wait()

    def check(self) -> None:
        if self.is_lost:
            raise ApiError(400, "The response's events are not kept: there are too many.", code="events_not_kept")

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


class EventWriter:
    """Stream events as bytes, numbered, and written into a log."""

    def __init__(self, log: EventLog) -> None:
        self._next = 0
        self._log = log

    def write(self, events: list[StreamEvent]) -> bytes:
        chunks = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._next, **event}
            self._next += 1
            chunks.append(b"event: " + event["type"].encode() + b"\ndata: " + encode_json(numbered) + b"\n\n")
            self._log.add(chunks[-1])
        return b"".join(chunks)


class NullLog(EventLog):
    """Of a response whose events cannot be read again."""

    def add(self, event: bytes) -> None:
        pass

    def check(self) -> None:
        raise _not_kept()


def replay(events: Sequence[bytes], start: int) -> AsyncGenerator[bytes, None]:
    """Of a response that is over."""
    if not events:
        raise _not_kept()
    return _replay(events, start)


async def _replay(events: Sequence[bytes], start: int) -> AsyncGenerator[bytes, None]:
    yield b"".join(events[start:])


def _not_kept() -> ApiError:
    message = "Only the events of responses made with background and stream can be read again."
    return ApiError(400, message, param="stream", code="events_not_kept")

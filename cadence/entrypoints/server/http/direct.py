"""From text of the engine to the outbox in one call, past the generators between them: where these wait for it anyway,
and the client for what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from cadence.entrypoints.server.http.outbox import NEVER_READY, BodyWriter

MakeChunk = Callable[[int, str, Sequence[int]], bytes]  # as `TextTap.put` is given it; b"" = there is nothing to show


class WriterPort(Protocol):
    def connect(self, writer: BodyWriter) -> None:
        """The stream has begun, and goes on there."""
        ...


class DirectStream:
    """A `TextTap`."""

    def __init__(self, make: MakeChunk) -> None:
        self._make = make
        self._writer: BodyWriter = NEVER_READY

    def connect(self, writer: BodyWriter) -> None:
        self._writer = writer

    @property
    def is_ready(self) -> bool:
        return self._writer.is_ready

    def put(self, index: int, text: str, token_ids: Sequence[int]) -> None:
        chunk = self._make(index, text, token_ids)
        if chunk:
            self._writer.put(chunk)


class NoDirectStream:
    def connect(self, writer: BodyWriter) -> None:
        pass


NOT_DIRECT = NoDirectStream()

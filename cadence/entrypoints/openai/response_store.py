"""Responses by id: finished ones for a while, bounded in number, size and age; running ones while they run."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

MAX_RESPONSES = 1024
MAX_BYTES = 64 * 2**20
MAX_AGE_S = 3600.0


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """Both are JSON, so that what is kept is what was said and its size is known."""

    body: bytes  # the response
    items: bytes  # the whole conversation, for the response that comes after
    num_input: int  # items of the conversation that came before the response
    stored_at: float = 0.0  # seconds, on the store's clock

    @property
    def size(self) -> int:
        return len(self.body) + len(self.items)


@dataclass(slots=True)
class RunningResponse:
    request_id: str  # the engine's
    snapshot: Callable[[], dict[str, Any]]  # the response so far
    cancelled: bool = False


@dataclass(slots=True)
class ResponseStore:
    max_responses: int = MAX_RESPONSES
    max_bytes: int = MAX_BYTES
    max_age_s: float = MAX_AGE_S
    clock: Callable[[], float] = time.monotonic
    running: dict[str, RunningResponse] = field(default_factory=dict)
    _stored: OrderedDict[str, StoredResponse] = field(default_factory=OrderedDict)  # the least recently used first
    _bytes: int = 0

    def keep(self, response_id: str, body: bytes, items: bytes, num_input: int = 0) -> None:
        self.drop(response_id)
        stored = StoredResponse(body, items, num_input, self.clock())
        self._stored[response_id] = stored
        self._bytes += stored.size
        while len(self._stored) > self.max_responses or self._bytes > self.max_bytes:
            self._forget(next(iter(self._stored)))

    def get(self, response_id: str) -> StoredResponse | None:
        stored = self._stored.get(response_id)
        if stored is None:
            return None
        if self.clock() - stored.stored_at > self.max_age_s:
            self._forget(response_id)
            return None
        self._stored.move_to_end(response_id)
        return stored

    def drop(self, response_id: str) -> bool:
        """Whether there was one."""
        known = self.get(response_id) is not None
        if known:
            self._forget(response_id)
        return known

    def __len__(self) -> int:
        return len(self._stored)

    def _forget(self, response_id: str) -> None:
        self._bytes -= self._stored.pop(response_id).size

"""The requests that have a row, the most important first."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from operator import attrgetter

import numpy as np

from cadence.scheduler.request_state import RequestState
from cadence.scheduler.rows import Column

_BY_KEY = attrgetter("key")


class RunningList:
    """Sorted by order key, unless arranged otherwise: a step serves from the head, preemption takes from the tail."""

    def __init__(self) -> None:
        self._requests: list[RequestState] = []
        self._by_key = True
        self._rows_np: Column = np.zeros(0, dtype=np.int64)
        self._changed = False

    def __iter__(self) -> Iterator[RequestState]:
        return iter(self._requests)

    def __len__(self) -> int:
        return len(self._requests)

    def __getitem__(self, index: int) -> RequestState:
        return self._requests[index]

    def add(self, request: RequestState) -> None:
        if self._by_key and self._requests and request.key < self._requests[-1].key:
            insort(self._requests, request, key=_BY_KEY)
        else:
            self._requests.append(request)
        self._changed = True

    def remove(self, request: RequestState) -> None:
        if self._by_key:
            del self._requests[bisect_left(self._requests, request.key, key=_BY_KEY)]
        else:
            self._requests.remove(request)
        self._changed = True

    def arrange(self, first_by: Callable[[RequestState], float]) -> None:
        """Those of the least go first; among equals, order keys count."""
        self._requests.sort(key=lambda request: (first_by(request), request.key))
        self._by_key, self._changed = False, True

    def arrange_by_key(self) -> None:
        if not self._by_key:
            self._requests.sort(key=_BY_KEY)
            self._by_key = self._changed = True

    def rows_np(self) -> Column:
        """[n] the rows in order. Not to be written to."""
        if self._changed:
            self._rows_np = np.array([request.row for request in self._requests], dtype=np.int64)
            self._changed = False
        return self._rows_np

"""Requests waiting for a row, the most urgent first."""

from __future__ import annotations

import heapq

from cadence.scheduler.request_state import OrderKey, RequestState, Status
from cadence.scheduler.shares import NoShares

Place = tuple[str, str]  # (feature, the text that it gave) of requests that are parked together


class WaitingQueue:
    """Heaps by order key: one for all, or one for each tenant, of which that of the tenant who has had the least is
    served first. Requests that end while they wait are skipped, and swept when they are the majority.

    A preempted request keeps its key, so it is ahead of all of its class that came later. Requests that a feature holds
    back are parked: they wait, and are not met at the head of the queue until they are recalled.
    """

    def __init__(self, shares: NoShares) -> None:
        self._shares = shares
        self._heaps: dict[str, list[tuple[OrderKey, RequestState]]] = {}
        self._parked: dict[Place, list[tuple[OrderKey, RequestState]]] = {}  # a heap each
        self._live = 0
        self._num_parked = 0
        self.num_prompt_tokens = 0  # of all that wait; other tokens may still come to one that was preempted

    def __len__(self) -> int:
        """All that wait, the parked ones included."""
        return self._live

    @property
    def num_ready(self) -> int:
        """Those that are not parked."""
        return self._live - self._num_parked

    def push(self, request: RequestState) -> None:
        self._put(request)
        self._live += 1
        self.num_prompt_tokens += request.prompt_len

    def peek(self) -> RequestState:
        """The most urgent one that is ready. The caller has checked that there is one."""
        return self._first()[0][1]

    def _first(self) -> list[tuple[OrderKey, RequestState]]:
        """The heap of the most urgent one."""
        for name, heap in list(self._heaps.items()):
            while heap and heap[0][1].status is not Status.WAITING:
                heapq.heappop(heap)
            if not heap:
                del self._heaps[name]
        if len(self._heaps) == 1:
            return next(iter(self._heaps.values()))
        return min(self._heaps.items(), key=lambda named: (self._shares.had(named[0]), named[1][0][0]))[1]

    def _put(self, request: RequestState) -> None:
        heap = self._heaps.setdefault(self._shares.queue_of(request.request), [])
        heapq.heappush(heap, (request.key, request))

    def pop(self) -> RequestState:
        heap = self._first()
        request = heapq.heappop(heap)[1]
        self._live -= 1
        self.num_prompt_tokens -= request.prompt_len
        return request

    def live(self) -> list[RequestState]:
        """All that wait, the most urgent first."""
        ready = (entry for heap in self._heaps.values() for entry in heap)
        entries = [*ready, *(entry for parked in self._parked.values() for entry in parked)]
        live = [(self._had(request), key, request) for key, request in entries if request.status is Status.WAITING]
        return [request for _, _, request in sorted(live)]

    def _had(self, request: RequestState) -> float:
        return self._shares.had(self._shares.queue_of(request.request))

    def park(self, place: Place) -> None:
        """The most urgent one waits aside from now on."""
        entry = heapq.heappop(self._first())
        request = entry[1]
        heapq.heappush(self._parked.setdefault(place, []), entry)
        request.parked = True
        self._num_parked += 1

    def parked(self, feature: str) -> list[tuple[OrderKey, str]]:
        """(key of the oldest request, text) of all places of a feature in which some are parked, the oldest first."""
        for place, heap in list(self._parked.items()):
            while heap and heap[0][1].status is not Status.WAITING:
                heapq.heappop(heap)
            if not heap:
                del self._parked[place]
        return sorted((heap[0][0], text) for (owner, text), heap in self._parked.items() if owner == feature)

    def recall(self, place: Place) -> None:
        """Those parked there are ready again."""
        for _, request in self._parked.pop(place):
            if request.status is Status.WAITING:
                request.parked = False
                self._num_parked -= 1
                self._put(request)

    def forget(self, request: RequestState) -> None:
        """It waited, and has just been marked as finished."""
        self._live -= 1
        self.num_prompt_tokens -= request.prompt_len
        if request.parked:
            request.parked = False
            self._num_parked -= 1
        if sum(map(len, self._heaps.values())) > 2 * self._live + 64:
            for name, heap in self._heaps.items():
                self._heaps[name] = [entry for entry in heap if entry[1].status is Status.WAITING]
                heapq.heapify(self._heaps[name])

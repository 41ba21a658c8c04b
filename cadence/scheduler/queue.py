"""Requests waiting for a row, the most urgent first."""

from __future__ import annotations

import heapq

from cadence.scheduler.request_state import OrderKey, RequestState, Status

Place = tuple[str, str]  # (feature, the text that it gave) of requests that are parked together


class WaitingQueue:
    """A heap by order key. Requests that end while they wait are skipped, and swept when they are the majority.

    A preempted request keeps its key, so it is ahead of all of its class that came later. Requests that a feature holds
    back are parked: they wait, and are not met at the head of the queue until they are recalled.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, RequestState]] = []
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
        heapq.heappush(self._heap, (request.key, request))
        self._live += 1
        self.num_prompt_tokens += request.prompt_len

    def peek(self) -> RequestState:
        """The most urgent one that is ready. The caller has checked that there is one."""
        while self._heap[0][1].status is not Status.WAITING:
            heapq.heappop(self._heap)
        return self._heap[0][1]

    def pop(self) -> RequestState:
        request = self.peek()
        heapq.heappop(self._heap)
        self._live -= 1
        self.num_prompt_tokens -= request.prompt_len
        return request

    def live(self) -> list[RequestState]:
        """All that wait, the most urgent first."""
        entries = [*self._heap, *(entry for parked in self._parked.values() for entry in parked)]
        return [request for _, request in sorted(entries) if request.status is Status.WAITING]

    def park(self, place: Place) -> None:
        """The most urgent one waits aside from now on."""
        request = self.peek()
        heapq.heappush(self._parked.setdefault(place, []), heapq.heappop(self._heap))
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
        for key, request in self._parked.pop(place):
            if request.status is Status.WAITING:
                request.parked = False
                self._num_parked -= 1
                heapq.heappush(self._heap, (key, request))

    def forget(self, request: RequestState) -> None:
        """It waited, and has just been marked as finished."""
        self._live -= 1
        self.num_prompt_tokens -= request.prompt_len
        if request.parked:
            request.parked = False
            self._num_parked -= 1
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)

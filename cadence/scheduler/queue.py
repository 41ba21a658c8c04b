"""Requests waiting for a row, the most urgent first."""

from __future__ import annotations

import heapq

from cadence.scheduler.request_state import OrderKey, RequestState, Status


class WaitingQueue:
    """A heap by order key. Requests that end while they wait are skipped, and swept when they are the majority.

    A preempted request keeps its key, so it is ahead of all of its class that came later.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[OrderKey, RequestState]] = []
        self._live = 0
        self.num_prompt_tokens = 0  # of all that wait; other tokens may still come to one that was preempted

    def __len__(self) -> int:
        return self._live

    def push(self, request: RequestState) -> None:
        heapq.heappush(self._heap, (request.key, request))
        self._live += 1
        self.num_prompt_tokens += request.prompt_len

    def peek(self) -> RequestState:
        """The most urgent one. The caller has checked the length."""
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
        return [request for _, request in sorted(self._heap) if request.status is Status.WAITING]

    def forget(self, request: RequestState) -> None:
        """It waited, and has just been marked as finished."""
        self._live -= 1
        self.num_prompt_tokens -= request.prompt_len
        if len(self._heap) > 2 * self._live + 64:
            self._heap = [entry for entry in self._heap if entry[1].status is Status.WAITING]
            heapq.heapify(self._heap)

"""The forwards of a plan after its first: rows that sample go on, as far as free blocks reach."""

from __future__ import annotations

import numpy as np

from cadence.scheduler.advance import grow_row
from cadence.scheduler.burst import BurstPolicy
from cadence.scheduler.flight import Flight
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.rows import Column, RowTable

_NOTHING_NP: Column = np.zeros(0, dtype=np.int64)


class Extension:
    """Nobody is preempted for a burst: it shrinks."""

    def __init__(self, policy: BurstPolicy, rows: RowTable, kv: KVManager) -> None:
        self._policy = policy
        self._rows = rows
        self._kv = kv
        self.num_forwards = 0  # forwards booked beyond the first of their plan, less those cut

    def run(self, draft: PlanDraft, waiting: bool) -> Flight:
        """Books the rest of the plan, of which all rows have had their first forward."""
        rows, sampling_np = self._rows, draft.sampling_np
        if self._policy.most == 1 or not len(sampling_np) or rows.needs_host_np[draft.rows_np].any():
            return Flight(draft.step_id, sampling_np, 1, _NOTHING_NP)
        room_np = rows.limit_np[sampling_np] - rows.length_np[sampling_np]
        steady = draft.all_decode and not (waiting or draft.short)
        wish = self._policy.wish(len(draft.rows_np), 1 + int(room_np.max()), steady)
        num_steps = self._affordable(draft, sampling_np, room_np, wish)
        if num_steps == 1:
            return Flight(draft.step_id, sampling_np, 1, _NOTHING_NP)
        flight = Flight(draft.step_id, sampling_np, num_steps, np.minimum(room_np, num_steps - 1))
        self._book(draft, flight)
        return flight

    def cut(self, flight: Flight, num_run: int) -> None:
        """Only the first `num_run` forwards will run. Blocks stay with their rows, which will soon need them."""
        kept_np = np.minimum(flight.extra_np, num_run - 1)
        dropped_np = flight.extra_np - kept_np
        sampling_np = flight.sampling_np[: len(dropped_np)]
        self._rows.settle(sampling_np, got_np=0, unused_np=dropped_np)
        self.num_forwards -= flight.num_steps - num_run
        flight.num_steps, flight.extra_np = num_run, kept_np

    def _affordable(self, draft: PlanDraft, sampling_np: Column, room_np: Column, num_steps: int) -> int:
        """`num_steps`, halved until the blocks it takes are free."""
        rows, kv = self._rows, self._kv
        lack_np = rows.computed_np[sampling_np] - rows.capacity_np[sampling_np]  # [s] <= 0
        free = max(kv.num_free - draft.claimed, 0) // kv.num_groups
        while num_steps > 1:
            tokens_np = np.maximum(lack_np + np.minimum(room_np, num_steps - 1), 0)  # [s] beyond what its blocks hold
            if int((-(-tokens_np // kv.block_size)).sum()) <= free:
                break
            num_steps //= 2
        return num_steps

    def _book(self, draft: PlanDraft, flight: Flight) -> None:
        rows, sampling_np = self._rows, flight.sampling_np
        self.num_forwards += flight.num_steps - 1
        rows.book_more(sampling_np, flight.extra_np)
        ends_np = rows.computed_np[sampling_np]
        for index in np.flatnonzero(ends_np > rows.capacity_np[sampling_np]).tolist():
            grow_row(draft, rows, self._kv, rows.requests[int(sampling_np[index])], int(ends_np[index]))

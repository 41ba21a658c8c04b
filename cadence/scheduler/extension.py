"""The forwards of a plan after its first: rows that sample go on, as far as free blocks reach."""

from __future__ import annotations

import numpy as np

from cadence.scheduler.advance import grow_row
from cadence.scheduler.burst import BurstPolicy
from cadence.scheduler.kv.manager import KVManager
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.rows import Column, RowTable
from cadence.scheduler.step_in_flight import StepInFlight

_NOTHING_NP: Column = np.zeros(0, dtype=np.int64)


class Extension:
    """Nobody is preempted for a burst: it shrinks."""

    def __init__(self, policy: BurstPolicy, rows: RowTable, kv: KVManager) -> None:
        self._policy = policy
        self._rows = rows
        self._kv = kv

    def run(self, draft: PlanDraft, waiting: bool) -> Column:
        """Books the forwards after the first, for which all rows are booked -> [s] tokens for each row that samples;
        [] without any. `draft.num_forwards` says how many there are in all."""
        rows, sampling_np = self._rows, draft.sampling_np
        if self._policy.most == 1 or not len(sampling_np) or rows.needs_host_np[draft.rows_np].any():
            return _NOTHING_NP
        room_np = rows.limit_np[sampling_np] - rows.length_np[sampling_np]
        steady = draft.all_decode and not (waiting or draft.short)
        wish = self._policy.wish(len(draft.rows_np), 1 + int(room_np.max()), steady)
        draft.num_forwards = self._affordable(draft, sampling_np, room_np, wish)
        if draft.num_forwards == 1:
            return _NOTHING_NP
        extra_np: Column = np.minimum(room_np, draft.num_forwards - 1)
        self._book(draft, extra_np)
        return extra_np

    def cut(self, step: StepInFlight) -> None:
        """Only the forwards that were asked for will run. Blocks stay with their rows, which will soon need them."""
        kept_np = np.minimum(step.extra_np, step.num_queued - 1)
        self._rows.settle(step.sampling_np[: len(kept_np)], got_np=0, unused_np=step.extra_np - kept_np)
        step.num_forwards, step.extra_np = step.num_queued, kept_np

    def _affordable(self, draft: PlanDraft, sampling_np: Column, room_np: Column, num_forwards: int) -> int:
        """`num_forwards`, halved until the blocks it takes are free."""
        rows, kv = self._rows, self._kv
        lack_np = rows.computed_np[sampling_np] - rows.capacity_np[sampling_np]  # [s] <= 0
        free = max(kv.num_free - draft.claimed, 0) // kv.num_groups
        while num_forwards > 1:
            beyond_np = np.maximum(lack_np + np.minimum(room_np, num_forwards - 1), 0)  # [s] tokens
            if int((-(-beyond_np // kv.block_size)).sum()) <= free:
                break
            num_forwards //= 2
        return num_forwards

    def _book(self, draft: PlanDraft, extra_np: Column) -> None:
        rows, sampling_np = self._rows, draft.sampling_np
        rows.book_more(sampling_np, extra_np)
        ends_np = rows.computed_np[sampling_np]
        for index in np.flatnonzero(ends_np > rows.capacity_np[sampling_np]).tolist():
            grow_row(draft, rows, self._kv, rows.requests[int(sampling_np[index])], int(ends_np[index]))

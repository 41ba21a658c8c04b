"""The forwards of a plan after its first: rows that sample go on, as far as free blocks reach."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cadence.scheduler.advance import grow_row
from cadence.scheduler.burst import BurstPolicy
from cadence.scheduler.feature import Books, HostFeature, with_own
from cadence.scheduler.plan import PlanDraft
from cadence.scheduler.rows import Column
from cadence.scheduler.step_in_flight import StepInFlight

_BESIDE_WAITING = 4  # forwards of a plan in which rows wait for mail, and have a token of the first only


class Extension:
    """No request is preempted for a burst: the burst shrinks."""

    def __init__(self, books: Books, policy: BurstPolicy, features: Sequence[HostFeature]) -> None:
        self._books = books
        self._budget = books.budget
        self._policy = policy
        self._features = with_own(features, "extend")
        self._rows = books.rows
        self._kv = books.kv

    def run(self, draft: PlanDraft, waiting: bool) -> None:
        """Books the forwards after the first, for which all rows are booked; `draft.num_forwards` says how many there
        are in all. A row may be booked beyond its limit, but has no blocks for that: it will have ended."""
        rows, sampling_np = self._rows, draft.following_np
        for feature in self._features:
            feature.extend(draft, self._books)
        if self._policy.most == 1 or not len(sampling_np) or rows.needs_host_np[draft.rows_np].any():
            return
        least_np = rows.known_np[sampling_np] + rows.due_np[sampling_np]  # tokens, if no draft is kept
        longest = max(int((rows.limit_np[sampling_np] - least_np).max()), 0)
        steady = draft.all_decode and not (waiting or draft.short or draft.has_turns)
        wanted = self._policy.wanted(len(draft.rows_np), 1 + longest, steady)
        if draft.waits:
            wanted = min(wanted, _BESIDE_WAITING)
        draft.num_forwards = self._affordable(draft, sampling_np, wanted)
        if draft.num_forwards > 1:
            self._book(draft)

    def cut(self, step: StepInFlight) -> None:
        """Only the forwards that were asked for will run. Blocks stay with their rows, which will soon need them."""
        given_up = step.num_forwards - step.num_queued
        self._rows.settle(step.following_np, given_up, got_np=0, unused_np=given_up * step.plan.width)
        step.num_forwards = step.num_queued

    def _affordable(self, draft: PlanDraft, sampling_np: Column, num_forwards: int) -> int:
        """`num_forwards`, halved until the blocks it takes are free."""
        rows, kv = self._rows, self._kv
        computed_np, capacity_np = rows.computed_np[sampling_np], rows.capacity_np[sampling_np]
        last_np = rows.limit_np[sampling_np] - 1  # the last token a request may have is never computed
        free = max(kv.num_free - draft.claimed, 0)
        while num_forwards > 1:
            ends_np = np.minimum(computed_np + (num_forwards - 1) * draft.width + self._budget.runs.reserve, last_np)
            beyond_np = np.maximum(ends_np - capacity_np, 0)  # [s] tokens
            if int((-(-beyond_np // kv.block_size)).sum()) * kv.num_growing <= free:
                break
            num_forwards //= 2
        return num_forwards

    def _book(self, draft: PlanDraft) -> None:
        rows, sampling_np = self._rows, draft.following_np
        rows.book_more(sampling_np, draft.num_forwards - 1, draft.width)
        ends_np = np.minimum(rows.computed_np[sampling_np] + self._budget.runs.reserve, rows.limit_np[sampling_np] - 1)
        for index in np.flatnonzero(ends_np > rows.capacity_np[sampling_np]).tolist():
            grow_row(draft, rows, self._kv, rows.requests[int(sampling_np[index])], int(ends_np[index]))

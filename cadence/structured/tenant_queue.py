"""Whose grammar is compiled next: tenants take turns, and none has every place.

Without tenants ("" is the only one) jobs begin in the order of their coming, in every place.
"""

from __future__ import annotations

from collections.abc import Iterable

from cadence.structured.compile_jobs import Compile


class TenantQueue:
    def __init__(self, places: int) -> None:
        """places: jobs that run at the same time"""
        self._places = places
        self._waiting: list[Compile] = []  # in the order of their coming
        self._taken = 0
        self._turns: dict[str, int] = {}  # of tenants that wait: when each had its last turn

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, job: Compile) -> None:
        self._waiting.append(job)

    def take(self, running: Iterable[Compile]) -> Compile | None:
        """The first job of the tenant that has the fewest in `running`, and of several the one whose last turn is the
        longest ago. No tenant gets the last free place while it has all others: one that comes later finds it free.
        None where no job may begin."""
        tenants = [job.tenant for job in running]
        counts = {job.tenant: tenants.count(job.tenant) for job in self._waiting}
        free = [job for job in self._waiting if not job.tenant or counts[job.tenant] < max(1, self._places - 1)]
        if not free:
            return None
        chosen = min(free, key=lambda job: (counts[job.tenant], self._turns.get(job.tenant, 0)))
        self._waiting.remove(chosen)
        self._taken += 1
        self._turns[chosen.tenant] = self._taken
        waiting = {job.tenant for job in self._waiting}
        self._turns = {tenant: turn for tenant, turn in self._turns.items() if tenant in waiting}
        return chosen

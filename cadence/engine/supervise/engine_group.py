"""Engines that share experts: they begin together, and where one ends, all of them end and begin anew."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from cadence.core.errors import EngineGivenUpError
from cadence.engine.supervise.async_client import EngineProcess, ProcessStarter, RunningEngine
from cadence.engine.supervise.descriptors import DescriptorReserve
from cadence.executor.worker.group_memory import GroupMemory, GroupSeat


class NoGroup:
    """Engines that know nothing of each other."""

    ends_together = False

    def left(self, rank: int) -> None:
        """It concerns no other."""

    def close(self, why: str) -> None:
        """There is nothing to end."""


NO_GROUP = NoGroup()


class OwnersGroup(NoGroup):
    """Of a front that does not own its engines: who does ends them and has them begin anew."""

    ends_together = True


OWNERS_GROUP = OwnersGroup()


class EngineGroup:
    """One generation after the other: each engine has one seat in it."""

    ends_together = True

    def __init__(self, num_engines: int) -> None:
        self._num_engines = num_engines
        self._memory = GroupMemory(num_engines)
        self._seated: set[int] = set()
        self._is_over = False  # an engine of this generation is gone
        self._closed = ""  # why there will be no other

    def seat(self, rank: int) -> GroupSeat:
        """For an engine that is about to start. Raises EngineGivenUpError where it would be left alone."""
        if self._closed:
            raise EngineGivenUpError(self._closed)
        if self._is_over or rank in self._seated:
            self._end()
            self._memory.release()
            self._memory, self._seated, self._is_over = GroupMemory(self._num_engines), set(), False
        self._seated.add(rank)
        return self._memory.seat(rank)

    def left(self, rank: int) -> None:
        """An engine is gone, perhaps for the reason that another one was."""
        if rank in self._seated:
            self._end()

    def close(self, why: str) -> None:
        """All engines end, and none begins."""
        self._closed = self._closed or why
        self._end()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._memory.abort()


class GroupStarter(ProcessStarter):
    """Of one engine of a group."""

    def __init__(self, group: EngineGroup, rank: int) -> None:
        self._group = group
        self._rank = rank

    async def start(self, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve) -> RunningEngine:
        seat = self._group.seat(self._rank)
        return await EngineProcess.start(command, {**options, "seat": asdict(seat)}, reserve, seat.descriptors)


def grouped(num_engines: int) -> tuple[EngineGroup, list[GroupStarter]]:
    """-> a group, and who starts each of its engines"""
    group = EngineGroup(num_engines)
    return group, [GroupStarter(group, rank) for rank in range(num_engines)]

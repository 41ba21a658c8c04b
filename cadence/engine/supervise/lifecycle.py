"""The states of an engine, as its supervisor sees it, and the one place that changes them."""

from __future__ import annotations

from enum import StrEnum


class EngineStatus(StrEnum):
    STARTING = "starting"  # a process was, or is about to be, made; it is not ready
    READY = "ready"  # it takes requests
    DRAINING = "draining"  # it was told to stop, and has a grace period
    DEAD = "dead"  # the process is gone; what comes next is not decided
    BACKING_OFF = "backing_off"  # another one starts in a moment
    GIVEN_UP = "given_up"  # there will be no other: every open request fails
    STOPPED = "stopped"  # as asked


_NEXT = {
    EngineStatus.STARTING: {EngineStatus.READY, EngineStatus.DEAD, EngineStatus.DRAINING, EngineStatus.GIVEN_UP},
    EngineStatus.READY: {EngineStatus.DEAD, EngineStatus.DRAINING, EngineStatus.GIVEN_UP},
    EngineStatus.DRAINING: {EngineStatus.STOPPED, EngineStatus.GIVEN_UP},
    EngineStatus.DEAD: {EngineStatus.BACKING_OFF, EngineStatus.DRAINING, EngineStatus.GIVEN_UP},
    EngineStatus.BACKING_OFF: {EngineStatus.STARTING, EngineStatus.DRAINING, EngineStatus.GIVEN_UP},
    EngineStatus.GIVEN_UP: set[EngineStatus](),
    EngineStatus.STOPPED: set[EngineStatus](),
}


class Lifecycle:
    def __init__(self) -> None:
        self._status = EngineStatus.STARTING

    @property
    def status(self) -> EngineStatus:
        return self._status

    @property
    def is_over(self) -> bool:
        """Given up or stopped: nothing follows."""
        return not _NEXT[self._status]

    def move(self, to: EngineStatus) -> None:
        if to not in _NEXT[self._status]:
            raise RuntimeError(f"an engine that is {self._status} cannot become {to}")
        self._status = to

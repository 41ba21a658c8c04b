"""What engines at rest mean for the fronts that they have, and what fronts ask of the process that owns the engines."""

from __future__ import annotations

from dataclasses import dataclass

KEEP, WAIT, ABORT = "keep", "wait", "abort"
RUN_MODES = (ABORT, WAIT, KEEP)  # what becomes of requests that run: they end, are waited for, or stay as they are


@dataclass(frozen=True, slots=True)
class Hold:
    """A later version takes the place of an earlier one."""

    version: int = 0
    is_paused: bool = False  # requests that come wait
    is_kept: bool = False  # engines compute nothing, of a pause ...
    is_asleep: bool = False  # ... or asleep
    running: str = KEEP  # what becomes of requests that run when a front learns of this

    @property
    def is_still(self) -> bool:
        return self.is_kept or self.is_asleep


NO_HOLD = Hold()


@dataclass(frozen=True, slots=True)
class PauseCall:
    mode: str
    clear_cache: bool


@dataclass(frozen=True, slots=True)
class SleepCall:
    level: int
    mode: str

"""A server under attack: cases in batches, a bystander beside them, and a look at the server after each batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from tests.hostile.bounds import Bounds
from tests.hostile.bystander import Bystander
from tests.hostile.case import Case
from tests.hostile.health import Health, Target
from tests.hostile.report import Report
from tests.hostile.sender import Sender, during


@dataclass(frozen=True)
class Pace:
    batch: int = 100
    connections: int = 8
    max_findings: int = 20  # distinct ones, after which it stops


class Campaign:
    """Use as a context manager: a bystander process runs beside it."""

    def __init__(self, target: Target, bounds: Bounds, report: Report, pace: Pace | None = None) -> None:
        self._target, self._bounds = target, bounds
        self._pace = pace or Pace()
        self.report = report

    def __enter__(self) -> Campaign:
        self._bystander = Bystander(self._target.url)
        self._bystander.pause()
        self._health = Health(self._target, self._bounds)
        self._sender = Sender(self._target.url, self._bounds, self.report, self._pace.connections)
        return self

    def __exit__(self, *error: object) -> None:
        self._bystander.close()

    def run(self, make: Callable[[int], Case], numbers: Iterable[int]) -> Report:
        """Until all are sent, the server is gone, or enough is found."""
        report, began, left = self.report, time.monotonic(), iter(numbers)
        while batch := list(islice(left, self._pace.batch)):
            self._run_batch([make(number) for number in batch])
            if len(report.distinct()) >= self._pace.max_findings or not self._health.is_alive():
                break
        report.seconds += time.monotonic() - began
        report.worst_livez_ms = self._bystander.worst["livez"] * 1000
        report.worst_gap_ms = self._bystander.worst["gap"] * 1000
        report.peak_mb = self._health.peak_mb
        report.start_mb = self._health.start_mb
        return report

    def _run_batch(self, cases: Sequence[Case]) -> None:
        self._bystander.go()
        flights = self._sender.send(cases)
        for sight in self._bystander.pause():
            if sight.breaks(self._bounds):
                self.report.add(str(sight), during(sight, flights))
        for problem in self._health.check():
            self.report.add(f"after a batch: {problem}", cases)

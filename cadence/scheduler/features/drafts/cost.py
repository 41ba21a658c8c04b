"""Estimates how long a forward of decodes takes, by the tokens it computes, from earlier ones."""

from __future__ import annotations

import bisect
import math
from dataclasses import dataclass

import numpy as np

_EDGES = (1.0, 1.0625, 1.125, 1.25)  # tokens per row: what forwards took is averaged over ranges up to these ...
_CELLS = 4  # ... and so many for each token beyond: few drafts may cost as much as some more
_SLOWER = 0.125  # weight of a measurement above the average ...
_FASTER = 0.25  # ... and of one below
_RENEWED = 0.5  # weight of a measurement where the average is old, or was much too high
_SURPRISE = 0.8  # times the average: nothing makes a forward so much faster than it can be
_OLD = 32  # measurements after which an average is old, unless renewed ...
_LEADER_AGE = 8  # ... after which another leads ...
_FORGOTTEN = 1024  # ... and after which it is forgotten
_OUTLIER = 1.5  # times the average: believed when the next measurement is such a one too
_TRUSTED = 2  # measurements from which on an average counts: the first launch of a shape may take long ...
_SOON = 8  # measurements after which forwards without drafts are measured again, times how often they were
_PLAUSIBLE = 1.25  # ... unless it takes less than so many times the time in proportion to its tokens
_PAYS = 1.02  # times as many tokens a second: worth trying
_FURTHER = 2  # times the drafts of which the cost is known may be tried
_BEYOND = 0.7  # times what a draft costs of which the cost is known, one is taken to cost of which it is not
_ROUNDING = 0.05  # drafts
_BUCKETS = 2  # per doubling of the number of rows


@dataclass(frozen=True, slots=True)
class CostCurve:
    """Time of a forward, as a multiple of that without drafts, by its tokens per row: linear between points."""

    x_np: np.ndarray  # [points] tokens per row, ascending
    cost_np: np.ndarray  # [points] never decreases
    most_drafts: int  # of a row, that may be tried: not many times those of which the cost is known

    @staticmethod
    def through(x: list[float], seconds: list[float]) -> CostCurve:
        """More tokens take no less time, so what takes longer was measured badly, or long ago. Drafts beyond what is
        known are taken to cost less than those before, which may be too little and is soon known."""
        if not x:
            return CostCurve(np.ones(1), np.ones(1), 1)
        lowest = np.minimum.accumulate(seconds[::-1])[::-1].tolist()
        cost = [each / lowest[0] for each in lowest]
        most_drafts = max(math.ceil(_FURTHER * (x[-1] - 1) + 1 - _ROUNDING), 1)
        slope = _BEYOND * (cost[-1] - 1) / (x[-1] - 1) if x[-1] > 1 else 0.0
        beyond = cost[-1] + slope * (1 + most_drafts - x[-1])
        return CostCurve(np.array([*x, 1.0 + most_drafts]), np.array([*cost, beyond]), most_drafts)

    @property
    def may_pay(self) -> bool:
        """Drafts that are always right would make it faster somewhere, or it is not known yet."""
        return bool((self.x_np > _PAYS * self.cost_np).any()) or len(self.x_np) == 1

    def cost(self, x: float) -> float:
        return float(np.interp(x, self.x_np, self.cost_np))


class RowsCost:
    """How long forwards of about one number of rows took.

    Averages over ranges of tokens per row, of which the first is exactly 1, nothing drafted: the base. Where a machine
    becomes slower or faster, all move with one that is measured often: the leader.
    """

    def __init__(self, most: int) -> None:
        cells = len(_EDGES) - 1 + _CELLS * most
        self._most = most  # drafts of a row
        self._x = [0.0] * cells  # tokens per row, mean of what was measured
        self._seconds = [0.0] * cells
        self._count = [0] * cells  # measurements
        self._trusted = [False] * cells
        self._doubted = [False] * cells  # the last measurement was an outlier
        self._seen = [0] * cells  # number of the last measurement
        self._clock = 0  # measurements
        self._leader = 0  # cell
        self._curve = CostCurve.through([], [])
        self._is_changed = False  # the curve is not up to date

    def copy(self, x: float, seconds: float) -> RowsCost:
        """For another number of rows, of which only one measurement is known: of the same shape, not measured."""
        other = RowsCost(self._most)
        if any(self._trusted):
            factor = seconds / (self._seconds[self._trusted.index(True)] * self.curve.cost(x))
            other._x, other._trusted = self._x[:], self._trusted[:]
            other._seconds = [each * factor for each in self._seconds]
            other._is_changed = True
        return other

    @property
    def curve(self) -> CostCurve:
        if self._is_changed:
            known = [cell for cell, trusted in enumerate(self._trusted) if trusted and self._is_kept(cell)]
            self._curve = CostCurve.through([self._x[cell] for cell in known], [self._seconds[cell] for cell in known])
            self._is_changed = False
        return self._curve

    def needs_base(self, age: int) -> bool:
        """Forwards without drafts were not measured, or not within the last `age` measurements; sooner where that was
        seldom done: the first ones may have taken longer than they will."""
        return self._count[0] < _TRUSTED or self._clock - self._seen[0] >= min(age, _SOON * self._count[0])

    def observe(self, x: float, seconds: float) -> None:
        """A forward of so many tokens per row took `seconds`."""
        cell = min(_cell(x), len(self._x) - 1)
        self._clock += 1
        if not self._is_kept(cell):
            self._count[cell], self._trusted[cell] = 0, False
        old_x, old = self._x[cell], self._seconds[cell]
        is_outlier = self._trusted[cell] and seconds > _OUTLIER * old and not self._doubted[cell]
        self._doubted[cell] = is_outlier
        if is_outlier:
            return
        weight = self._weight(cell, seconds)
        self._x[cell] = old_x + (x - old_x) * weight
        self._seconds[cell] = old + (seconds - old) * weight
        if self._trusted[cell]:
            self._lead(cell, old_x, self._seconds[cell] / old)
        self._count[cell] += 1
        self._seen[cell] = self._clock
        self._trusted[cell] = self._trusted[cell] or self._count[cell] >= _TRUSTED or self._is_plausible(cell)
        self._is_changed = True

    def _weight(self, cell: int, seconds: float) -> float:
        if self._count[cell] == 0:
            return _RENEWED if self._trusted[cell] else 1.0
        if not self._trusted[cell]:
            return 1.0 if seconds < self._seconds[cell] else 0.0
        usual = _SLOWER if seconds > self._seconds[cell] else _FASTER
        is_surprise = seconds < _SURPRISE * self._seconds[cell]
        return _RENEWED if is_surprise or self._clock - self._seen[cell] > _OLD else usual

    def _is_plausible(self, cell: int) -> bool:
        below = [lower for lower in range(cell) if self._trusted[lower]]
        if not below:
            return False
        in_proportion = self._seconds[below[-1]] * self._x[cell] / self._x[below[-1]]
        return self._seconds[cell] < _PLAUSIBLE * in_proportion

    def _lead(self, measured: int, old_x: float, factor: float) -> None:
        """All others have changed as the leader has, but for what its other tokens per row explain."""
        if self._clock - self._seen[self._leader] > _LEADER_AGE:
            self._leader = measured
        if measured != self._leader:
            return
        if self._x[measured] != old_x:
            curve = self.curve
            factor *= curve.cost(old_x) / curve.cost(self._x[measured])
        own = self._seconds[measured]
        self._seconds = [seconds * factor for seconds in self._seconds]
        self._seconds[measured] = own

    def _is_kept(self, cell: int) -> bool:
        return self._clock - self._seen[cell] < _FORGOTTEN


class DraftCost:
    """By about every number of rows; where none was measured, costs have the shape of the nearest."""

    def __init__(self, most: int) -> None:
        self._by_rows: dict[int, RowsCost] = {}
        self._unknown = RowsCost(most)

    def of(self, num_rows: int) -> RowsCost:
        bucket = _bucket(num_rows)
        return self._by_rows.get(bucket) or self._nearest(bucket)

    def observe(self, num_rows: int, tokens: float, seconds: float) -> None:
        """A forward of so many rows computed so many tokens in `seconds`."""
        bucket, x = _bucket(num_rows), tokens / num_rows
        if bucket not in self._by_rows:
            self._by_rows[bucket] = self._nearest(bucket).copy(x, seconds)
        self._by_rows[bucket].observe(x, seconds)

    def _nearest(self, bucket: int) -> RowsCost:
        if not self._by_rows:
            return self._unknown
        return self._by_rows[min(self._by_rows, key=lambda known: abs(known - bucket))]


def _cell(x: float) -> int:
    """0 without drafts, and so on."""
    if x <= _EDGES[-1]:
        return bisect.bisect_left(_EDGES, x)
    return len(_EDGES) - 2 + math.ceil(_CELLS * (x - 1) - 1e-6)


def _bucket(num_rows: int) -> int:
    return round(_BUCKETS * math.log2(num_rows))

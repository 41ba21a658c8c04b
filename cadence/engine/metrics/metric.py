"""Counters, gauges and histograms as plain values, with the names existing dashboards know."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Metric:
    name: str
    labels: dict[str, str]


@dataclass(slots=True)
class Counter(Metric):
    value: float = 0  # a whole number, but for seconds


@dataclass(slots=True)
class Vector(Metric):
    """Counters by position, in one: as scripts for vLLM find those of drafts."""

    values: list[int] = field(default_factory=list)


@dataclass(slots=True)
class Gauge(Metric):
    value: float = 0.0


@dataclass(slots=True)
class Histogram(Metric):
    bounds: tuple[float, ...] = ()  # upper bounds, ascending; the last bucket is open
    count: int = 0
    sum: float = 0.0
    _counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float, times: int = 1) -> None:
        self._counts[bisect.bisect_left(self.bounds, value)] += times
        self.count += times
        self.sum += value * times

    def observe_each(self, values: Iterable[float]) -> None:
        counts, bounds = self._counts, self.bounds
        for value in values:
            counts[bisect.bisect_left(bounds, value)] += 1
            self.count += 1
            self.sum += value

    def set_to(self, counts: Sequence[int], total: float) -> None:
        """What another process observed."""
        self._counts = [*counts, *[0] * (len(self._counts) - len(counts))]
        self.count, self.sum = sum(counts), total

    @property
    def counts(self) -> list[int]:
        """By bucket, not cumulative."""
        return list(self._counts)

    @property
    def buckets(self) -> dict[str, int]:
        """Cumulative counts by upper bound, as Prometheus has them."""
        total, cumulative = 0, {}
        for bound, number in zip([*map(str, self.bounds), "+Inf"], self._counts, strict=True):
            total += number
            cumulative[bound] = total
        return cumulative


def in_vectors(metrics: Iterable[Metric]) -> list[Metric]:
    """Counters with the label `position`, which come in its order, become a vector in the place of the first."""
    found: list[Metric] = []
    vectors: dict[tuple[str, ...], Vector] = {}
    for metric in metrics:
        if not isinstance(metric, Counter) or "position" not in metric.labels:
            found.append(metric)
            continue
        labels = {name: value for name, value in metric.labels.items() if name != "position"}
        key = (metric.name, *labels.values())
        if key not in vectors:
            vectors[key] = Vector(metric.name, labels)
            found.append(vectors[key])
        vectors[key].values.append(int(metric.value))
    return found

"""Metrics of several fronts as one: what each has counted itself is summed up; what engines say is the same in all."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest

from cadence.core.contract.front_messages import FrontCounts, PlainMetric
from cadence.engine.metrics.metric import Counter, Histogram, Metric

# By name without a prefix: told by engines to every front alike.
OF_ENGINES = frozenset({
    "num_preemptions", "prefix_cache_queries", "prefix_cache_hits", "iteration_tokens_total", "engine_restarts",
    "mm_cache_queries", "mm_cache_hits", "rank_busy_seconds",
    "spec_decode_num_drafts", "spec_decode_num_draft_tokens", "spec_decode_num_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos", "state_snapshots_saved", "state_snapshots_restored",
    "state_snapshots_evicted",
})  # fmt: skip


def plain_metrics(metrics: Iterable[Metric]) -> list[PlainMetric]:
    """Those that this front has counted itself."""
    found: list[PlainMetric] = []
    for metric in metrics:
        if metric.name.partition(":")[2] in OF_ENGINES:
            continue
        if isinstance(metric, Counter):
            found.append((metric.name, metric.labels, [int(metric.value)], 0.0))
        elif isinstance(metric, Histogram):
            found.append((metric.name, metric.labels, metric.counts, metric.sum))
    return found


def with_others(own: Sequence[Metric], others: FrontCounts) -> list[Metric]:
    """This front's metrics, with what others have counted. None of `own` is changed."""
    added = {_key(name, labels): (counts, total) for name, labels, counts, total in others.metrics}
    return [_plus(metric, *added.get(_key(metric.name, metric.labels), ([], 0.0))) for metric in own]


def summed(counts: Iterable[FrontCounts]) -> FrontCounts:
    metrics: dict[tuple[str, frozenset[tuple[str, str]]], PlainMetric] = {}
    server: dict[str, int] = {}
    for each in counts:
        for name, labels, values, total in each.metrics:
            key = _key(name, labels)
            _, _, before, sum_before = metrics.get(key, (name, labels, [], 0.0))
            metrics[key] = (name, labels, _added(before, values), sum_before + total)
        for name, value in each.server.items():
            server[name] = server.get(name, 0) + value
    return FrontCounts(list(metrics.values()), server)


def _plus(metric: Metric, counts: list[int], total: float) -> Metric:
    if not counts:
        return metric
    if isinstance(metric, Counter):
        return replace(metric, value=metric.value + counts[0])
    if isinstance(metric, Histogram):
        together = Histogram(metric.name, metric.labels, metric.bounds)
        together.set_to(_added(metric.counts, counts), metric.sum + total)
        return together
    return metric


def _added(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [mine + theirs for mine, theirs in zip_longest(one, other, fillvalue=0)]


def _key(name: str, labels: dict[str, str]) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())

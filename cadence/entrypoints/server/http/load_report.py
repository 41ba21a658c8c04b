"""Load reports for balancers (ORCA): asked for with `endpoint-load-metrics-format: TEXT` or `JSON`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable

from starlette.types import Scope

from cadence.engine.metrics.metric import Gauge, Metric

FORMAT_HEADER = b"endpoint-load-metrics-format"
HEADER = b"endpoint-load-metrics"
REPORTED = ("kv_cache_usage_perc", "num_requests_waiting")


Metrics = Callable[[Scope], Iterable[Metric]]  # of the engine that a request was handed to


def load_header(scope: Scope, metrics: Metrics) -> list[tuple[bytes, bytes]]:
    """The header of an answer; none where the request does not ask for it."""
    asked = [value for name, value in scope["headers"] if name == FORMAT_HEADER]
    if not asked:
        return []
    report = load_report(asked[0].decode("latin-1"), metrics(scope))
    return [(HEADER, report.encode())] if report else []


def load_report(wanted: str, metrics: Iterable[Metric]) -> str:
    """ "" for an unknown format."""
    values: dict[str, list[float]] = {name: [] for name in REPORTED}  # by engine
    for metric in metrics:
        if isinstance(metric, Gauge) and (name := metric.name.partition(":")[2]) in values:
            values[name].append(float(metric.value))
    usage, waiting = (values[name] for name in REPORTED)
    named = dict(zip(REPORTED, (sum(usage) / len(usage), sum(waiting)), strict=True))
    if wanted.strip().lower() == "text":
        return "TEXT " + ", ".join(f"named_metrics.{name}={value}" for name, value in named.items())
    if wanted.strip().lower() == "json":
        return "JSON " + json.dumps({"named_metrics": named})
    return ""

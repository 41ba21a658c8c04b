"""Prometheus' view: the engine's numbers under `vllm:`, so that existing dashboards work, and again under `cadence:`,
where the server's own counters stand too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from cadence.engine.metrics import metric as engine
from cadence.engine.metrics.descriptions import DESCRIPTIONS
from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["metrics"])

TEXT = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_PREFIX = "vllm:"
OWN_PREFIX = "cadence:"
_ENDS = ("finished", "failed", "aborted")


@router.get("/metrics")
async def metrics(state: State) -> Response:
    registry = CollectorRegistry()
    registry.register(_Snapshot(state))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=TEXT)


class _Snapshot(Collector):
    def __init__(self, state: ServerState) -> None:
        self._state = state

    def collect(self) -> Iterator[Metric]:
        found, served = self._state.llm.get_metrics(), self._state.model_names[0]
        for prefix in (ENGINE_PREFIX, OWN_PREFIX):
            yield from engine_families(found, prefix, served)
        yield from _admission_families(self._state.admission)
        dropped = self._state.logs.dropped
        yield CounterMetricFamily(
            f"{OWN_PREFIX}log_lines_dropped", "lines dropped because the output was not read in time", dropped
        )


def engine_families(metrics: Iterable[engine.Metric], prefix: str, served: str) -> list[Metric]:
    """Metrics of one name are one family; their labels tell them apart. The model goes by the name it is served
    under."""
    families: dict[str, Metric] = {}
    for metric in metrics:
        if metric.name.startswith(OWN_PREFIX) and prefix != OWN_PREFIX:
            continue
        name = prefix + metric.name.removeprefix(ENGINE_PREFIX).removeprefix(OWN_PREFIX)
        family = families.get(name)
        if family is None:
            family = families[name] = _family(metric, name)
        _add(family, metric, [*{**metric.labels, "model_name": served}.values()])
    return list(families.values())


def _family(metric: engine.Metric, name: str) -> Metric:
    help = DESCRIPTIONS[name.partition(":")[2]]
    labels = list(metric.labels)
    if isinstance(metric, engine.Histogram):
        return HistogramMetricFamily(name, help, labels=labels)
    if isinstance(metric, engine.Counter):
        return CounterMetricFamily(name, help, labels=labels)
    return GaugeMetricFamily(name, help, labels=labels)


def _add(family: Metric, metric: engine.Metric, labels: list[str]) -> None:
    if isinstance(family, HistogramMetricFamily) and isinstance(metric, engine.Histogram):
        bounds = [bound if bound == "+Inf" else str(float(bound)) for bound in metric.buckets]
        family.add_metric(labels, list(zip(bounds, metric.buckets.values(), strict=True)), metric.sum)
    elif isinstance(family, CounterMetricFamily | GaugeMetricFamily) and isinstance(
        metric, engine.Counter | engine.Gauge
    ):
        family.add_metric(labels, metric.value)


def _admission_families(admission: AdmissionControl) -> Iterator[Metric]:
    """accepted = finished + failed + aborted + in flight, in every scrape."""
    yield CounterMetricFamily(f"{OWN_PREFIX}http_requests_accepted", "requests accepted", admission.accepted)
    for end in _ENDS:
        value = getattr(admission, end)
        yield CounterMetricFamily(f"{OWN_PREFIX}http_requests_{end}", f"requests accepted that {end}", value)
    yield GaugeMetricFamily(
        f"{OWN_PREFIX}http_requests_in_flight", "requests accepted and not over", admission.in_flight
    )
    yield CounterMetricFamily(
        f"{OWN_PREFIX}http_requests_refused", "requests refused for lack of capacity", admission.refused
    )
    yield GaugeMetricFamily(f"{OWN_PREFIX}http_completions_in_flight", "completions asked for", admission.completions)
    yield GaugeMetricFamily(f"{OWN_PREFIX}http_prompt_tokens_in_flight", "prompt tokens, estimated", admission.tokens)

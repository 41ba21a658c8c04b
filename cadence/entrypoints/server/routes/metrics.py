"""Prometheus' view: the engine's numbers under `vllm:`, so that existing dashboards work, and again under `cadence:`,
where the server's own counters stand too."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from cadence.core.contract.front_messages import FrontCounts
from cadence.engine.metrics import metric as engine
from cadence.engine.metrics.descriptions import DESCRIPTIONS
from cadence.engine.metrics.summed import plain_metrics, with_others
from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.tenant_ledger import TenantCounts
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["metrics"])

TEXT = "text/plain; version=0.0.4; charset=utf-8"
ENGINE_PREFIX = "vllm:"
OWN_PREFIX = "cadence:"
_HELP = {
    "http_requests_accepted": "requests accepted",
    "http_requests_finished": "requests accepted that finished",
    "http_requests_failed": "requests accepted that failed",
    "http_requests_aborted": "requests accepted that aborted",
    "http_requests_in_flight": "requests accepted and not over",
    "http_requests_refused": "requests refused for lack of capacity",
    "http_completions_in_flight": "completions asked for",
    "http_prompt_tokens_in_flight": "prompt tokens, estimated",
    "log_lines_dropped": "lines dropped because the output was not read in time",
}
_TENANT_HELP = {
    "requests_accepted": "requests of the tenant that were let in",
    "requests_refused": "requests of the tenant beyond its limits",
    "tokens": "tokens of the tenant's prompts, estimated, and of what was written for it",
}
_GAUGES = frozenset(name for name in _HELP if name.endswith("_in_flight"))


@router.get("/metrics")
async def metrics(state: State) -> Response:
    """Of all processes that serve this address, whichever answers."""
    registry = CollectorRegistry()
    registry.register(_Snapshot(state, await state.peers.counts()))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=TEXT)


class _Snapshot(Collector):
    def __init__(self, state: ServerState, others: FrontCounts) -> None:
        self._state = state
        self._others = others

    def collect(self) -> Iterator[Metric]:
        found, served = with_others(self._state.llm.get_metrics(), self._others), self._state.model_names[0]
        for prefix in (ENGINE_PREFIX, OWN_PREFIX):
            yield from engine_families(found, prefix, served)
        own = server_counts(self._state)
        yield from server_families({name: value + self._others.server.get(name, 0) for name, value in own.items()})
        yield from tenant_families(self._state.admission.ledger.counts())


def tenant_families(counts: Mapping[str, TenantCounts]) -> Iterator[Metric]:
    """Of named tenants, all processes together."""
    for field, text in _TENANT_HELP.items():
        family = CounterMetricFamily(f"{OWN_PREFIX}tenant_{field}", text, labels=["tenant"])
        for tenant, found in counts.items():
            family.add_metric([tenant], getattr(found, field))
        if counts:
            yield family


def server_families(counts: Mapping[str, int]) -> Iterator[Metric]:
    for name, value in counts.items():
        family = GaugeMetricFamily if name in _GAUGES else CounterMetricFamily
        yield family(f"{OWN_PREFIX}{name}", _HELP[name], value)


def server_counts(state: ServerState) -> dict[str, int]:
    return counts_of(state.admission, state.logs.dropped)


def counts_of(admission: AdmissionControl, log_lines_dropped: int) -> dict[str, int]:
    """The server's own numbers. accepted = finished + failed + aborted + in flight, in every scrape."""
    return {
        "http_requests_accepted": admission.accepted,
        "http_requests_finished": admission.finished,
        "http_requests_failed": admission.failed,
        "http_requests_aborted": admission.aborted,
        "http_requests_in_flight": admission.in_flight,
        "http_requests_refused": admission.refused,
        "http_completions_in_flight": admission.completions,
        "http_prompt_tokens_in_flight": admission.tokens,
        "log_lines_dropped": log_lines_dropped,
    }


def front_counts(state: ServerState) -> FrontCounts:
    """What this process has counted."""
    return FrontCounts(plain_metrics(state.llm.get_metrics()), server_counts(state))


def engine_families(metrics: Iterable[engine.Metric], prefix: str, served: str) -> list[Metric]:
    """Of one model, which goes by the name it is served under."""
    return families_of([(served, metric) for metric in metrics], prefix)


def families_of(metrics: Iterable[tuple[str, engine.Metric]], prefix: str) -> list[Metric]:
    """Metrics of one name are one family; their labels tell them apart. metrics: each with the name of its model"""
    families: dict[str, Metric] = {}
    for served, metric in metrics:
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

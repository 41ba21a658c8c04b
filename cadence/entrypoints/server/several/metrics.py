"""Prometheus' view of all models: what each engine counts, with its model's name, and where each model is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from fastapi import APIRouter
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.responses import Response

from cadence.entrypoints.server.routes.metrics import (
    ENGINE_PREFIX,
    OWN_PREFIX,
    TEXT,
    counts_of,
    families_of,
    server_families,
    tenant_families,
)
from cadence.entrypoints.server.several.entry import CatalogEntry
from cadence.entrypoints.server.several.models import Models, ServedModels
from cadence.entrypoints.server.several.residency import ModelState
from cadence.entrypoints.server.several.served_model import Running

router = APIRouter(tags=["metrics"])

_GAUGES: dict[str, tuple[str, Callable[[CatalogEntry[Running]], float]]] = {
    "model_memory_bytes": ("bytes that the model takes now", lambda entry: entry.books.held),
    "model_requests_running": ("requests that the model has been given", lambda entry: entry.books.users),
    "model_load_seconds": ("seconds that its last load took", lambda entry: entry.load_seconds),
}


@router.get("/metrics")
async def metrics(models: Models) -> Response:
    """Of all models in memory; what one has counted begins at 0 when it is loaded again."""
    registry = CollectorRegistry()
    registry.register(_ModelsSnapshot(models))
    ProcessCollector(registry=registry)
    return Response(generate_latest(registry), media_type=TEXT)


class _ModelsSnapshot(Collector):
    def __init__(self, models: ServedModels) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        found = [(name, metric) for name, running in self._models.running() for metric in running.llm.get_metrics()]
        for prefix in (ENGINE_PREFIX, OWN_PREFIX):
            yield from families_of(found, prefix)
        yield from server_families(self._counts())
        yield from tenant_families(self._models.parts.ledger.counts())
        yield from self._residence()

    def _counts(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for model in self._models.models.values():
            if model.kept is not None:
                total.update(counts_of(model.kept.admission, 0))
        total["log_lines_dropped"] = self._models.parts.logs.dropped
        return total

    def _residence(self) -> Iterator[Metric]:
        entries = self._models.catalog.entries
        states = GaugeMetricFamily(f"{OWN_PREFIX}model_state", "1 for its state", labels=["model_name", "state"])
        loads = CounterMetricFamily(f"{OWN_PREFIX}model_loads", "times it was loaded", labels=["model_name"])
        waiting = GaugeMetricFamily(
            f"{OWN_PREFIX}model_requests_waiting", "requests that wait for it to be loaded", labels=["model_name"]
        )
        for name, entry in entries.items():
            for state in ModelState:
                states.add_metric([name, state], entry.shown_state is state)
            loads.add_metric([name], entry.num_loads)
            waiting.add_metric([name], self._models.catalog.num_waiting(name))
        yield from (states, loads, waiting)
        for field, (text, value_of) in _GAUGES.items():
            family = GaugeMetricFamily(f"{OWN_PREFIX}{field}", text, labels=["model_name"])
            for name, entry in entries.items():
                family.add_metric([name], value_of(entry))
            yield family
        budget = self._models.catalog.budget
        yield GaugeMetricFamily(f"{OWN_PREFIX}models_memory_limit_bytes", "bytes that all may take", budget)

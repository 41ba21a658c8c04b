"""All models of a server: their names, the catalog that brings them into memory, and what is told of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from fastapi import Depends
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Scope

from cadence.config.server.models_file import ModelPlan
from cadence.config.server.serve_options import ServeOptions
from cadence.engine.log_queue import LogQueue, NullLogQueue
from cadence.engine.metrics.metric import Metric
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.server.http.errors import ApiError, not_found
from cadence.entrypoints.server.http.ignored import IgnoredFields
from cadence.entrypoints.server.make_state import ServerParts
from cadence.entrypoints.server.responses.client import ResponseClient
from cadence.entrypoints.server.routes.peers import NO_PEERS
from cadence.entrypoints.server.routes.state import MODEL_STATE, ServerState
from cadence.entrypoints.server.several.catalog import Catalog
from cadence.entrypoints.server.several.entry import CatalogEntry
from cadence.entrypoints.server.several.residency import Rules
from cadence.entrypoints.server.several.served_model import EngineStart, Running, ServedModel
from cadence.entrypoints.server.several.store import SharedPeers

NO_APP: ASGIApp = cast(ASGIApp, None)
MOST_SHOWN = 20  # names, in the answer to a request for one that does not exist


@dataclass(frozen=True, slots=True)
class SharedState:
    """What routes get that ask for responses by their ids, whichever model made them."""

    responses: ResponseClient
    ignored: IgnoredFields


class ServedModels:
    """Made inside a running event loop. A `Served`."""

    def __init__(
        self,
        plans: Sequence[ModelPlan],
        options: ServeOptions,
        budget: int,
        start: EngineStart,
        logs: LogQueue | NullLogQueue,
    ) -> None:
        """budget: bytes that all in memory may take"""
        self.options = options
        self.parts = ServerParts.of(options, logs, NO_PEERS)
        self.started = int(time.time())
        self.app = NO_APP  # the routes; set once
        self.is_starting = True  # those that are loaded at the start are on their way
        self.is_draining = False
        self._peers = SharedPeers()
        self.shared = SharedState(self._peers.client, self.parts.ignored)
        self.models = {
            plan.entry.name: ServedModel(plan, self.parts, self._peers, start, lambda: self.app) for plan in plans
        }
        self.catalog: Catalog[Running] = Catalog(
            {name: (model, _rules(model.plan)) for name, model in self.models.items()}, budget
        )
        for name, model in self.models.items():
            model.on_lost = lambda running, why, name=name: self.catalog.lose(name, running, why)  # type: ignore[misc]
        default = next((plan for plan in plans if plan.entry.default), plans[0])
        self.default = default.entry.name
        self._by_name = {name: plan.entry.name for plan in plans for name in plan.entry.names}
        self._in_flight = 0  # requests that wait for a model, or run
        self._idle = asyncio.Event()
        self._tasks: set[asyncio.Future[None]] = set()

    @property
    def names(self) -> list[str]:
        """Also those of adapters."""
        adapters = [adapter.lora_name for model in self.models.values() for adapter in model.adapters]
        return [*self._by_name, *adapters]

    def find(self, name: str | None) -> str:
        """The model that answers to this name. Raises 404."""
        if not name:
            return self.default
        if name in self._by_name:
            return self._by_name[name]
        for model in self.models.values():
            if any(adapter.lora_name == name for adapter in model.adapters):
                return model.name
        if self.options.skip_model_name_validation:
            return self.default
        raise self._not_found(name)

    def _not_found(self, name: str) -> ApiError:
        names = self.names
        shown = ", ".join(names[:MOST_SHOWN]) + (", …" if len(names) > MOST_SHOWN else "")
        message = f"The model `{name}` does not exist. There are: {shown}."
        return not_found(message, "model", "model_not_found")

    async def take(self, name: str) -> Running:
        """The model of this name in memory, for one request. `give_back` must follow."""
        self._in_flight += 1
        try:
            return await self.catalog.take(name, self.options.models_wait)
        except BaseException:
            self._leave()
            raise

    def give_back(self, name: str, running: Running) -> None:
        """What the request leaves running keeps the model in memory, too."""
        if running.state.admission.in_flight and self.catalog[name].books.users == 1:
            self._spawn(self._give_back_later(name, running))
        else:
            self.catalog.give_back(name)
        self._leave()

    def _leave(self) -> None:
        self._in_flight -= 1
        self._check_idle()

    async def _give_back_later(self, name: str, running: Running) -> None:
        """Its answer goes on in the background."""
        await running.state.admission.wait_idle()
        self.catalog.give_back(name)
        self._check_idle()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def load_first(self) -> list[str]:
        """Those that are loaded at the start. -> names of those that failed"""
        first = [name for name, model in self.models.items() if model.plan.entry.load == "start"]
        done = await asyncio.gather(*map(self.load, first), return_exceptions=True)
        self.is_starting = False
        return [name for name, error in zip(first, done, strict=True) if error is not None]

    async def load(self, name: str) -> None:
        """By command."""
        await self.catalog.load(name, self.options.models_wait)

    def idle_seconds(self, name: str) -> float:
        """Since its last request, or its load."""
        return round(time.monotonic() - self.catalog[name].books.last_used, 3)

    def entry(self, name: str) -> CatalogEntry[Running]:
        return self.catalog[name]

    def running(self) -> list[tuple[str, Running]]:
        """Those in memory, with their names."""
        found = [(name, self.catalog.ready(name)) for name in self.models]
        return [(name, running) for name, running in found if running is not None]

    def metrics_of(self, scope: Scope) -> list[Metric]:
        """Of the engine that a request was handed to."""
        state: ServerState | None = scope.get(MODEL_STATE)
        return state.llm.get_metrics() if state is not None else []

    # What `Served` asks for.

    @property
    def in_flight(self) -> int:
        kept = [model.kept.admission.in_flight for model in self.models.values() if model.kept is not None]
        return max(self._in_flight, sum(kept))

    @property
    def engine_pids(self) -> list[int]:
        return [pid for model in self.models.values() for pid in model.engine_pids]

    def drain(self) -> None:
        """Those that wait for a model that is not in memory are told to come again."""
        self.is_draining = True
        for model in self.models.values():
            if model.kept is not None:
                model.kept.admission.drain()
        self.catalog.refuse_all()

    async def wait_idle(self) -> None:
        while self.in_flight:
            self._idle.clear()
            await self._idle.wait()

    def _check_idle(self) -> None:
        if not self.in_flight:
            self._idle.set()

    async def wait_lost(self) -> str:
        """One that fails takes none of the others along."""
        await asyncio.Event().wait()
        return ""

    async def end_engines(self) -> None:
        await self.catalog.close()

    def llm_of(self, scope: Scope) -> AsyncLLM:
        state: ServerState = scope[MODEL_STATE]
        return state.llm


def _rules(plan: ModelPlan) -> Rules:
    entry = plan.entry
    return Rules(entry.keep_alive, entry.pinned, entry.idle == "sleep")


async def served_models(connection: HTTPConnection) -> ServedModels:
    """Async, because FastAPI sends others to a thread."""
    return cast(ServedModels, connection.app.state.served)


Models = Annotated[ServedModels, Depends(served_models)]

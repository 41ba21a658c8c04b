"""Many engines behind a few API processes, simulated: real schedulers and the real router, beside a model of time.

    python -m benchmarks.simulate_cluster [--engines 8 64 512] [--apis 1 8 64] [--seconds 1] [--output results.json]
    python -m benchmarks.cluster_chart results.json docs/images/cluster.svg

Each engine is a scheduler whose steps take what `benchmarks.step_model` fitted to the GPU's; each API process takes a
measured time for every token that it streams, and for every request what routing it takes here and now. Clients ask
again when they have read their answer. Prompts begin with one of a few texts for each engine.
"""

from __future__ import annotations

import argparse
import heapq
import importlib
import json
import platform
import random
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.scheduler import parts_of
from benchmarks.step_model import BLOCK, RESULTS, StepModel, fitted, measured, new_request, new_scheduler
from cadence.core.request import EngineRequest
from cadence.core.step import StepPlan
from cadence.core.update import RequestUpdate
from cadence.scheduler.scheduler import Scheduler

ARRIVE_S = 0.3  # simulated, for all clients to come
ROWS = 16  # requests at once on each engine, and clients for each engine
PREFIX, OWN, OUTPUT = 512, 64, 64  # tokens of a prompt that others share, of its own, and of an answer
PREFIXES = 4  # different beginnings for each engine
BLOCKS = 1 + ROWS * (PREFIX + OWN + OUTPUT) // BLOCK + 8 * PREFIX // BLOCK  # of an engine: its rows, and some prefixes
OBSERVED_S = 0.1  # simulated, between two looks of API processes at the loads of all engines


class AnyRouter(Protocol):
    def route(self, request: EngineRequest) -> int: ...

    def began(self, request_id: str) -> None: ...

    def ended(self, request_id: str) -> None: ...

    def observe(self, engine: int, num_requests: int) -> None: ...


class RoundRobin:
    """Routers of several processes begin at different engines."""

    def __init__(self, num_engines: int) -> None:
        self._count, self._next = num_engines, random.randrange(num_engines)

    def route(self, request: EngineRequest) -> int:
        self._next = (self._next + 1) % self._count
        return self._next

    def began(self, request_id: str) -> None:
        """Nothing is kept."""

    def ended(self, request_id: str) -> None:
        """Nothing is kept."""

    def observe(self, engine: int, num_requests: int) -> None:
        """Nothing is kept."""


def real_router(num_engines: int) -> AnyRouter:
    router = importlib.import_module("cadence.engine.router").Router(num_engines, BLOCK, BLOCKS)
    for number in range(num_engines):
        router.up(number)
    return router


ROUTERS: dict[str, Callable[[int], AnyRouter]] = {"router": real_router, "round robin": RoundRobin}


@dataclass
class Engine:
    scheduler: Scheduler
    plan: StepPlan | None = None  # that runs
    num_requests: int = 0


@dataclass
class Api:
    router: AnyRouter
    free_at: float = 0.0  # when it has done all that it was given
    busy_s: float = 0.0

    def work(self, now: float, seconds: float) -> float:
        """-> when that is done"""
        self.free_at = max(self.free_at, now) + seconds
        self.busy_s += seconds
        return self.free_at


@dataclass
class Counts:
    """After the warm-up."""

    tokens: int = 0  # that clients have got
    requests: int = 0
    cached: int = 0  # tokens of prompts
    prompts: int = 0  # tokens
    route_s: list[float] = field(default_factory=list)


class Cluster:
    def __init__(self, sizes: tuple[int, int], model: StepModel, token_s: float, router: str, warm_s: float) -> None:
        """sizes: engines, and API processes. token_s: that a process takes for a token. warm_s: not counted"""
        num_engines, num_apis = sizes
        self.warm_s = warm_s
        self.engines = [Engine(new_scheduler(ROWS, BLOCKS, max_model_len=1024)) for _ in range(num_engines)]
        self.apis = [Api(ROUTERS[router](num_engines)) for _ in range(num_apis)]
        self.model, self.token_s = model, token_s
        self.counts = Counts()
        self._draw = random.Random(0)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = self._num_requests = 0
        self._clients: dict[str, int] = {}  # by request
        self.now = 0.0
        self._at(OBSERVED_S, self._observe)
        for client in range(num_engines * ROWS):
            self._at(self._draw.random() * ARRIVE_S, lambda client=client: self._ask(client))

    def run(self, seconds: float) -> None:
        while self._events and self.now < self.warm_s + seconds:
            self.now, _, happen = heapq.heappop(self._events)
            happen()

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, happen))

    def _observe(self) -> None:
        """Each API process hears of the requests of others."""
        for api in self.apis if len(self.apis) > 1 else ():
            for number, engine in enumerate(self.engines):
                api.router.observe(number, engine.num_requests)
        self._at(self.now + OBSERVED_S, self._observe)

    def _ask(self, client: int) -> None:
        api, text = self.apis[client % len(self.apis)], self._draw.randrange(len(self.engines) * PREFIXES)
        self._num_requests += 1
        own = [3 + (self._num_requests * 7 + place) % 30000 for place in range(OWN)]
        name = f"{self._num_requests}"
        request = new_request(name, [40_000 + text] * PREFIX + own, OUTPUT)
        began = time.thread_time()
        number = api.router.route(request)
        took = time.thread_time() - began
        self._clients[name] = client
        if self.now > self.warm_s:
            self.counts.route_s.append(took)
        self._at(api.work(self.now, took), lambda: self._arrive(self.engines[number], request))

    def _arrive(self, engine: Engine, request: EngineRequest) -> None:
        engine.scheduler.add(request)
        engine.num_requests += 1
        if engine.plan is None:
            self._step(engine)

    def _step(self, engine: Engine) -> None:
        plan = engine.scheduler.schedule()
        engine.plan = plan if len(plan.rows_np) else None
        if engine.plan is not None:
            self._at(self.now + self.model.seconds(plan), lambda: self._returned(engine))

    def _returned(self, engine: Engine) -> None:
        assert engine.plan is not None
        for result in parts_of(engine.plan, 5, 0):
            for update in engine.scheduler.update(result):
                engine.num_requests -= update.finish_reason is not None
                self._told(update)
        self._step(engine)

    def _told(self, update: RequestUpdate) -> None:
        client = self._clients[update.request_id]
        api = self.apis[client % len(self.apis)]
        api.router.began(update.request_id)
        read_at = api.work(self.now, self.token_s * len(update.new_token_ids))
        if read_at > self.warm_s:
            self._at(read_at, lambda: self._read(update))
        if update.finish_reason is not None:
            api.router.ended(update.request_id)
            del self._clients[update.request_id]
            self._at(read_at, lambda: self._ask(client))

    def _read(self, update: RequestUpdate) -> None:
        counts = self.counts
        counts.tokens += len(update.new_token_ids)
        if update.finish_reason is not None:
            counts.requests += 1
            counts.cached += update.num_cached_tokens
            counts.prompts += PREFIX + OWN


def simulated(sizes: tuple[int, int], model: StepModel, asked: argparse.Namespace, router: str) -> dict[str, Any]:
    """sizes: engines, and API processes"""
    began, (num_engines, num_apis) = time.monotonic(), sizes
    cluster = Cluster(sizes, model, asked.token_us / 1e6, router, asked.warm)
    before = [api.busy_s for api in cluster.apis]
    cluster.run(asked.seconds)
    counts, routes = cluster.counts, sorted(cluster.counts.route_s)
    busy = sum(api.busy_s - at for api, at in zip(cluster.apis, before, strict=True)) / len(cluster.apis)
    return {
        "engines": num_engines,
        "apis": num_apis,
        "router": router,
        "tokens_per_s": round(counts.tokens / asked.seconds),
        "requests_per_s": round(counts.requests / asked.seconds),
        "prefix_hits": round(counts.cached / max(counts.prompts, 1), 3),
        "route_us": round(1e6 * routes[len(routes) // 2], 1) if routes else None,
        "api_busy": round(min(busy / (asked.warm + asked.seconds), 1.0), 3),
        "took_s": round(time.monotonic() - began, 1),
    }


def measured_token_us() -> float:
    """Of an API process, for each token that it streams."""
    found = json.loads((RESULTS / "serve_cpu_neoverse_n1.json").read_text(encoding="utf-8"))
    return float(sorted(found["api_cpu"]["microseconds_per_streamed_token"])[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 16, 32, 64, 128])
    parser.add_argument("--apis", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--routers", nargs="+", choices=ROUTERS, default=["router"])
    parser.add_argument("--seconds", type=float, default=1.0, help="simulated, behind the warm-up")
    parser.add_argument("--warm", type=float, default=1.0, help="simulated, before anything is counted")
    parser.add_argument("--token-us", type=float, default=measured_token_us())
    parser.add_argument("--output", type=Path)
    asked = parser.parse_args()
    model, said = fitted(measured(RESULTS / "gpu_h200.jsonl", "llama-3.1-8b"))
    lines = []
    for router in asked.routers:
        for num_engines in asked.engines:
            for num_apis in asked.apis:
                lines.append(simulated((num_engines, num_apis), model, asked, router))
                print(json.dumps(lines[-1]), flush=True)
    about = {"shape": "llama-3.1-8b on the H200", "model": asdict(model), "said / measured": said}
    result = {**about, "token_us": asked.token_us, "machine": platform.machine(), "lines": lines}
    if asked.output:
        asked.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

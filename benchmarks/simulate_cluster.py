"""Many engines behind a few API processes, simulated: real schedulers and the real router, beside a model of time.

    python -m benchmarks.simulate_cluster [--points 8:1 8:8 128:64] [--seeds 3] [--out results.jsonl]
    python -m benchmarks.cluster_chart results.jsonl docs/images/cluster.svg

Each engine is a scheduler whose steps take what `benchmarks.step_model` fitted to the GPU's; each API process takes a
measured time for every token that it streams, and for every request what routing it takes here and now. Clients ask
again when they have read their answer. Prompts begin with one of a few texts for each engine.

A run has settled when the tokens of the last `HALF` windows and those of as many before differ by less than `SAME`, and
so do the prompt tokens found in caches; the last `HALF` windows are what it reports. One that has not by `--most`
simulated seconds, or `--cpu` seconds of work, says so.
"""

from __future__ import annotations

import argparse
import heapq
import json
import platform
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.scheduler import parts_of
from benchmarks.step_model import BLOCK, RESULTS, StepModel, fitted, measured, new_request, new_scheduler
from cadence.core.contract.request import EngineRequest
from cadence.core.contract.step import StepPlan
from cadence.engine.fleet.router import Router
from cadence.scheduler.scheduler import Scheduler

ARRIVE_S = 0.5  # simulated, for all clients to come: longer than an answer takes, so that they do not march in step
ROWS = 16  # requests at once on each engine, and clients for each engine
PREFIX, OWN, OUTPUT = 512, 64, 64  # tokens of a prompt that others share, of its own, and of an answer
PREFIXES = 4  # different beginnings for each engine
BLOCKS = 1 + ROWS * (PREFIX + OWN + OUTPUT) // BLOCK + 8 * PREFIX // BLOCK  # of an engine: its rows, and some prefixes
BURST = 4  # forwards of a plan: a scheduler is asked once for so many
OBSERVED_S = 0.1  # simulated, between two looks of API processes at the loads of all engines
WINDOW_S = 0.25  # simulated
HALF, SAME = 4, 0.03


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
    router = Router(num_engines, BLOCK, BLOCKS)
    for number in range(num_engines):
        router.up(number)
    return router


ROUTERS: dict[str, Callable[[int], AnyRouter]] = {"router": real_router, "round robin": RoundRobin}


@dataclass
class Engine:
    scheduler: Scheduler
    plan: StepPlan | None = None  # that runs
    num_requests: int = 0
    clients: dict[int, int] = field(default_factory=dict)  # by the scheduler's number of a request
    busy_s: float = 0.0


@dataclass
class Api:
    router: AnyRouter
    free_at: float = 0.0  # when it has done all that it was given
    given_s: float = 0.0  # of work

    def work(self, now: float, seconds: float) -> float:
        """-> when that is done"""
        self.free_at = max(self.free_at, now) + seconds
        self.given_s += seconds
        return self.free_at

    def done_s(self, now: float) -> float:
        """Work that is done by now."""
        return self.given_s - max(0.0, self.free_at - now)


@dataclass
class Window:
    tokens: int = 0  # that clients have got
    requests: int = 0  # that ended
    cached: int = 0  # tokens of their prompts
    route_s: list[float] = field(default_factory=list)
    api_s: float = 0.0  # that API processes have worked by its end
    engine_s: float = 0.0  # and engines


class Cluster:
    def __init__(self, sizes: tuple[int, int], model: StepModel, token_s: float, router: str, seed: int) -> None:
        """sizes: engines, and API processes. token_s: that a process takes for a token."""
        num_engines, num_apis = sizes
        schedulers = [new_scheduler(ROWS, BLOCKS, max_model_len=1024, burst=BURST) for _ in range(num_engines)]
        self.engines = [Engine(scheduler) for scheduler in schedulers]
        random.seed(seed)
        self.apis = [Api(ROUTERS[router](num_engines)) for _ in range(num_apis)]
        self.windows: defaultdict[int, Window] = defaultdict(Window)
        self.now = 0.0
        self._model, self._token_s = model, token_s
        self._draw = random.Random(seed)
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = self._num_requests = 0
        self._clients: dict[str, int] = {}  # by request
        self._at(OBSERVED_S, self._observe)
        for client in range(num_engines * ROWS):
            self._at(self._draw.random() * ARRIVE_S, lambda client=client: self._ask(client))

    def run_window(self, number: int) -> Window:
        """Until its end: windows come one after the other."""
        ends = (number + 1) * WINDOW_S
        while self._events[0][0] < ends:
            self.now, _, happen = heapq.heappop(self._events)
            happen()
        window = self.windows[number]
        window.api_s = sum(api.done_s(ends) for api in self.apis)
        window.engine_s = sum(engine.busy_s for engine in self.engines)
        return window

    def _at(self, when: float, happen: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._events, (when, self._num_events, happen))

    def _window(self, when: float) -> Window:
        return self.windows[int(when / WINDOW_S)]

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
        request = new_request(f"{self._num_requests}", [40_000 + text] * PREFIX + own, OUTPUT)
        began = time.thread_time()
        number = api.router.route(request)
        took = time.thread_time() - began
        self._clients[request.request_id] = client
        self._window(self.now).route_s.append(took)
        self._at(api.work(self.now, took), lambda: self._arrive(self.engines[number], request))

    def _arrive(self, engine: Engine, request: EngineRequest) -> None:
        engine.scheduler.add(request)
        engine.num_requests += 1
        if engine.plan is None:
            self._step(engine)

    def _step(self, engine: Engine) -> None:
        """An engine without work has no event until a request arrives."""
        plan = engine.scheduler.schedule()
        engine.plan = plan if len(plan.rows_np) else None
        if engine.plan is not None:
            seconds = self._model.seconds(plan)
            engine.busy_s += seconds
            self._at(self.now + seconds, lambda: self._returned(engine))

    def _returned(self, engine: Engine) -> None:
        """News of a burst, at its end: tokens by number, updates of requests that begin or end."""
        assert engine.plan is not None
        (result,) = parts_of(engine.plan, 5, 0)
        updates, tokens = engine.scheduler.update(result), engine.scheduler.take_tokens()
        for number, token_ids in tokens.each():
            self._streamed(engine.clients[number], len(token_ids))
        for update in updates:
            client = self._clients[update.request_id]
            engine.clients[update.number] = client
            api, read_at = self._streamed(client, len(update.new_token_ids))
            api.router.began(update.request_id)
            if update.finish_reason is not None:
                engine.num_requests -= 1
                api.router.ended(update.request_id)
                del self._clients[update.request_id], engine.clients[update.number]
                window = self._window(read_at)
                window.requests += 1
                window.cached += update.num_cached_tokens
                self._at(read_at, lambda client=client: self._ask(client))
        self._step(engine)

    def _streamed(self, client: int, num_tokens: int) -> tuple[Api, float]:
        """-> by whom, and when the client has read them"""
        api = self.apis[client % len(self.apis)]
        read_at = api.work(self.now, self._token_s * num_tokens)
        self._window(read_at).tokens += num_tokens
        return api, read_at


def has_settled(windows: list[Window]) -> bool:
    if len(windows) < 2 * HALF + 1:  # the first one has clients that are still to come
        return False
    before, last = windows[-2 * HALF : -HALF], windows[-HALF:]

    def same(of: Callable[[Window], int]) -> bool:
        one, other = sum(map(of, before)), sum(map(of, last))
        return abs(one - other) <= SAME * max(one, other, 1)

    return same(lambda window: window.tokens) and same(lambda window: window.cached)


def simulated(
    sizes: tuple[int, int], model: StepModel, asked: argparse.Namespace, router: str, seed: int
) -> dict[str, Any]:
    """sizes: engines, and API processes"""
    began, (num_engines, num_apis) = time.process_time(), sizes
    cluster = Cluster(sizes, model, asked.token_us / 1e6, router, seed)
    windows: list[Window] = []
    while not has_settled(windows) and len(windows) * WINDOW_S < asked.most and time.process_time() - began < asked.cpu:
        windows.append(cluster.run_window(len(windows)))
    last, seconds = windows[-HALF:], HALF * WINDOW_S
    first = windows[-HALF - 1]
    prompts = sum(window.requests for window in last) * (PREFIX + OWN)
    return {
        "engines": num_engines,
        "apis": num_apis,
        "router": router,
        "seed": seed,
        "settled": has_settled(windows),
        "simulated_s": len(windows) * WINDOW_S,
        "tokens_per_s": round(sum(window.tokens for window in last) / seconds),
        "prefix_hits": round(sum(window.cached for window in last) / max(prompts, 1), 3),
        "route_us": round(1e6 * statistics.median(took for window in windows for took in window.route_s), 1),
        "api_busy": round((last[-1].api_s - first.api_s) / num_apis / seconds, 3),
        "engine_busy": round((last[-1].engine_s - first.engine_s) / num_engines / seconds, 3),
        "cpu_s": round(time.process_time() - began, 1),
    }


def measured_token_us() -> float:
    """Of an API process, for each token that it streams."""
    found = json.loads((RESULTS / "token_cost_neoverse_n1.json").read_text(encoding="utf-8"))
    return float(found["cpu_us_per_token"][0]["this"]["api"])


def sizes_of(text: str) -> tuple[int, int]:
    engines, apis = text.split(":")
    return int(engines), int(apis)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--points", type=sizes_of, nargs="+", default=[(8, 1), (32, 8), (128, 64)], help="ENGINES:APIS")
    parser.add_argument("--router", choices=ROUTERS, default="router")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--most", type=float, default=8.0, help="simulated seconds of a run")
    parser.add_argument("--cpu", type=float, default=300.0, help="seconds of CPU that a run may take")
    parser.add_argument("--token-us", type=float, default=0.0, help="0 = as measured")
    parser.add_argument("--out", type=Path, help="lines are added")
    asked = parser.parse_args()
    asked.token_us = asked.token_us or measured_token_us()
    model, said = fitted(measured(RESULTS / "gpu_h200.jsonl", "llama-3.1-8b"))
    about = {"shape": "llama-3.1-8b on the H200", "model": asdict(model), "said / measured": said}
    about |= {"token_us": asked.token_us, "machine": platform.machine()}
    for sizes in asked.points:
        for seed in range(asked.seeds):
            line = json.dumps({**simulated(sizes, model, asked, asked.router, seed), "about": about})
            print(line[: line.index('"about"')], flush=True)
            if asked.out:
                with asked.out.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


if __name__ == "__main__":
    main()

"""All ranks of a model in threads of this process, with the links and the shared memory of real ones: Python functions
need not travel, and what happens can be seen."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.config.parallel import ONE_PROCESS
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.step import Mail, StepPlan, StepResult
from cadence.device.base import Device
from cadence.distributed.collectives import open_collectives
from cadence.distributed.links import open_links
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_areas import SharedAreas
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.worker.worker import Worker
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.kernels.interface.collectives import ONE_RANK

WAIT_S = 60.0

Message = Callable[[Worker], Any]


class Rank:
    """Does what it is told, in order, and keeps what came of calls and of forwards."""

    def __init__(self, open_worker: Callable[[], Worker]) -> None:
        self.inbox: queue.Queue[Message | None] = queue.Queue()
        self.answers: queue.Queue[Any] = queue.Queue()
        self.results: queue.Queue[StepResult | Exception] = queue.Queue()
        self._open = open_worker
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        try:
            worker = self._open()
            self.answers.put(worker)
            while (message := self.inbox.get()) is not None:
                message(worker)
                while worker.num_queued:
                    self.results.put(worker.result())
            worker.stop()
        except Exception as error:
            self.answers.put(error)
            self.results.put(error)


class ThreadedRanks:
    """An `Executor`."""

    def __init__(self, ranks: list[Rank], areas: SharedAreas, driver: int) -> None:
        self._ranks = ranks
        self._areas = areas
        self._driver = ranks[driver]
        self._uncommon: dict[str, list[list[Any]]] = {}

    def step(self, plan: StepPlan) -> None:
        self._tell(lambda worker: worker.step(plan))

    def advance(self, step_id: int, first: int, count: int) -> None:
        self._tell(lambda worker: worker.advance(step_id, first, count))

    def post(self, step_id: int, mail: Mail) -> None:
        self._tell(lambda worker: worker.post(step_id, mail))

    def result(self) -> StepResult:
        return _taken(self._driver.results)

    def call(self, verb: Verb[P, A], payload: P) -> A:
        for rank in self._ranks:
            rank.inbox.put(lambda worker, rank=rank: rank.answers.put(worker.call(verb, payload)))
        answers = [_taken(rank.answers) for rank in self._ranks]
        if verb.cumulative:
            kept = self._uncommon.setdefault(verb.name, [[] for _ in answers])
            for before, answer in zip(kept, answers, strict=True):
                before += answer
            answers = kept
        return verb.combined(answers)

    def check(self) -> None: ...

    def busy_seconds(self) -> list[float]:
        return []

    def stop(self) -> None:
        for rank in self._ranks:
            rank.inbox.put(None)
        for rank in self._ranks:
            rank.thread.join(WAIT_S)

    def _tell(self, message: Message) -> None:
        for rank in self._ranks:
            rank.inbox.put(message)


def _taken(box: queue.Queue[Any]) -> Any:
    found = box.get(timeout=WAIT_S)
    if isinstance(found, Exception):
        raise found
    return found


def open_ranks(new_device: Callable[[], Device], config: EngineConfig, processors: Processors) -> OpenExecutor:
    """As many as the configuration says."""
    parallel = config.parallel
    mesh = Mesh(0, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    areas = SharedAreas.create(mesh)

    def open_worker(at: Mesh) -> Worker:
        device = new_device()
        ranks = open_collectives(areas.together[at.pp_rank], device, at) if areas.together else ONE_RANK
        links = open_links(areas.links[at.tp_rank] if areas.links else (), device, at)
        return Worker(device, WorkerConfig.of(config), processors, ranks=ranks, links=links)

    ranks = [Rank(partial(open_worker, mesh.at(rank))) for rank in range(mesh.world_size)]
    workers = [_taken(rank.answers) for rank in ranks]
    told, caps = workers[mesh.driver], new_device().caps
    executor = ThreadedRanks(ranks, areas, mesh.driver)
    seen = replace(config, parallel=ONE_PROCESS)  # Python functions are welcome
    return OpenExecutor(executor, seen, caps, True, told.layout, told.vocab_size)

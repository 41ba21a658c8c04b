"""An executor whose ranks are processes: every message goes to all of them, results come from one."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, NoReturn

from cadence.config.engine_config import EngineConfig
from cadence.core.contract.codec import (
    answer_of,
    call_of,
    decode_answer,
    decode_result,
    encode,
    encode_mail,
    encode_plan,
)
from cadence.core.contract.control import A, P, Verb
from cadence.core.contract.step import Mail, StepPlan, StepResult
from cadence.core.errors import ConfigError, EngineDeadError
from cadence.device.base import DeviceCaps
from cadence.device.cpus import cpu_shares
from cadence.distributed.mesh import Mesh
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.local.local_ranks import LocalRanks, check_pidfd
from cadence.executor.local.rank_group import RankGroup, Ranks
from cadence.executor.worker import wire
from cadence.executor.worker.wire import ModelFacts, Seat
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.process.messages import ClosedError, MessageError, MessageReader

STOP_S = 1.0  # for the message that ends workers to be written


class ProcessExecutor:
    """Forwards run while the caller goes on. What a worker dies of is raised by whatever is called next."""

    def __init__(self, group: RankGroup, driver: int) -> None:
        self._group = group
        self._commands = group.ranks.commands
        self._readers = group.ranks.results
        self._driver = driver  # the rank that results come from
        self._results: deque[bytes] = deque()  # that were met on the way to an answer
        self._uncommon: dict[str, list[list[Any]]] = {}  # by cumulative verb, of each rank: what not all have said
        self._stuck = ""  # what a rank has not answered in time: its answer would be taken for that to another call
        self._finalize = weakref.finalize(self, group.end)

    @property
    def pids(self) -> list[int]:
        """Of the workers, by rank."""
        return self._group.ranks.pids

    def configure(self, config: bytes) -> list[ModelFacts]:
        """The first message. -> what each rank knows of its model, once it is loaded"""
        self._send(config)
        return [wire.decode_ready(self._next(reader, wire.READY)) for reader in self._readers]

    def step(self, plan: StepPlan) -> None:
        self._send(wire.STEP + encode_plan(plan))

    def advance(self, step_id: int, first: int, count: int) -> None:
        self._send(wire.encode_advance(step_id, first, count))

    def post(self, step_id: int, mail: Mail) -> None:
        self._send(wire.encode_post(step_id, encode_mail(mail)))

    def result(self) -> StepResult:
        if self._results:
            return decode_result(self._results.popleft())
        return decode_result(self._next(self._readers[self._driver], wire.RESULT))

    def call(self, verb: Verb[P, A], payload: P) -> A:
        """Waits for what was queued before it. Every rank answers; the error of one is raised when all have."""
        ends = time.monotonic() + verb.deadline_s
        try:
            self._send(wire.CALL + encode(call_of(verb, payload)), verb.deadline_s)
            answers = [decode_answer(self._answer(reader, ends)) for reader in self._readers]
        except TimeoutError:
            late = verb.unanswered("a rank")
            self._stuck = str(late)
            raise late from None
        return self._combined(verb, [answer_of(verb, answer) for answer in answers])

    def check(self) -> None:
        if self._group.death or self._stuck:
            self._raise_death()

    def busy_seconds(self) -> list[float]:
        return self._group.ranks.busy_seconds()

    def stop(self) -> None:
        if not self._finalize.alive:  # the garbage collector called it before its owner was deleted
            return
        with contextlib.suppress(ClosedError, TimeoutError, MessageError):  # who does not hear it is killed
            self._commands.write(wire.STOP, STOP_S)
        self._finalize()

    def _combined(self, verb: Verb[Any, A], answers: list[Any]) -> A:
        if not verb.cumulative:
            return verb.combined(answers)
        kept = self._uncommon.setdefault(verb.name, [[] for _ in answers])
        for before, answer in zip(kept, answers, strict=True):
            before += answer
        return verb.combined(kept)

    def _send(self, message: bytes, timeout_s: float = math.inf) -> None:
        self._guarded(lambda: self._commands.write(message, timeout_s))

    def _answer(self, reader: MessageReader, ends: float) -> bytes:
        """ends: by time.monotonic, when it is too late. Raises TimeoutError."""
        while True:
            kind, data = self._read(reader, max(0.0, ends - time.monotonic()))
            if kind == wire.ANSWER:
                return data
            if kind != wire.RESULT:
                raise MessageError(f"{kind!r} where an answer was to come")
            self._results.append(data)

    def _next(self, reader: MessageReader, wanted: bytes) -> bytes:
        kind, data = self._read(reader)
        if kind != wanted:
            raise MessageError(f"{kind!r} where {wanted!r} was to come")
        return data

    def _read(self, reader: MessageReader, timeout_s: float = math.inf) -> tuple[bytes, bytes]:
        """-> (kind, content). The death of any worker ends the wait."""
        message = self._guarded(lambda: reader.read(timeout_s))
        if message[:1] == wire.FAILURE:
            raise wire.decode_error(message[1:])
        return message[:1], message[1:]

    def _guarded(self, work: Callable[[], Any]) -> Any:
        if self._stuck:
            self._raise_death()
        try:
            return work()
        except ClosedError:
            self._raise_death()

    def _raise_death(self) -> NoReturn:
        """What a worker said before it ended, else how it ended."""
        death = self._stuck or self._group.await_death()
        for reader in self._readers:
            try:
                while True:
                    message = reader.read(0)
                    if message[:1] == wire.FAILURE:
                        raise wire.decode_error(message[1:])
            except (ClosedError, MessageError, TimeoutError):
                continue
        raise EngineDeadError(death)


def open_processes(config: EngineConfig, caps: DeviceCaps, processors: Processors, replicas: int = 1) -> OpenExecutor:
    """replicas: ranks that all compute the same, of which the first is heard."""
    check_processors(processors)
    check_pidfd()
    mesh = Mesh(0, config.parallel.tensor_parallel_size, config.parallel.pipeline_parallel_size)
    if replicas > 1:
        mesh = Mesh(0, replicas)
    return open_group(LocalRanks(_seats(mesh, config, replicas > 1)), mesh, config, caps)


def _seats(mesh: Mesh, config: EngineConfig, have_all: bool) -> list[Seat]:
    ranks = range(mesh.world_size)
    if config.device.kind == "cuda":
        gpus = config.device.ids or tuple(ranks)
        return [
            Seat(mesh.at(rank), num_threads=0, gpu=gpu, num_sharers=gpus.count(gpu), has_all=have_all)
            for rank, gpu in zip(ranks, gpus, strict=True)
        ]
    shares = cpu_shares(mesh.world_size, config.device.cpu_threads)
    return [
        Seat(mesh.at(rank), num_threads=threads, cpus=cpus, has_all=have_all)
        for rank, (threads, cpus) in zip(ranks, shares, strict=True)
    ]


def check_processors(processors: Processors) -> None:
    if processors:
        raise ConfigError(
            "logits_processors are Python functions and cannot be sent to workers in other processes; "
            "use distributed_executor_backend='uni'",
            "logits_processors",
        )


def open_group(ranks: Ranks, mesh: Mesh, config: EngineConfig, caps: DeviceCaps) -> OpenExecutor:
    """Starts ranks, which load the model."""
    executor = ProcessExecutor(RankGroup(ranks), mesh.driver)
    try:
        ready = executor.configure(wire.encode_plain(WorkerConfig.of(config)))
    except BaseException:
        executor.stop()
        raise
    told = ready[mesh.driver]
    return OpenExecutor(executor, config, caps, True, told.layout, told.vocab_size)

"""Several engines behind one front: each has a supervisor and a share of the cores, a router chooses who gets a
request, and what one engine leaves when it dies another goes on with."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from functools import partial
from typing import Any

from cadence.config.parallel import SHARES_EXPERTS, devices_by_engine
from cadence.core.contract.control import STATE, A, P, Verb
from cadence.core.contract.engine_state import EngineState
from cadence.core.contract.messages import EngineInfo
from cadence.core.contract.update import AnyUpdate
from cadence.core.errors import EngineDeadError
from cadence.engine.fleet.every_engine import EveryEngine
from cadence.engine.fleet.router import Router
from cadence.engine.supervise.engine_client import EngineClient, EngineCounts
from cadence.engine.supervise.engine_group import NO_GROUP, EngineGroup, NoGroup, grouped
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import Supervisor
from cadence.executor.worker.cpu_share import cpu_shares
from cadence.process.together import all_or_none

DEFAULT_BLOCK_SIZE = 16  # tokens, of an engine that was asked for none; another's prefixes are recognised as well
NO_UPDATES: list[AnyUpdate] = []  # in the queue: the last engine is gone


def open_engines(options: dict[str, Any], command: Sequence[str], limits: SupervisorLimits) -> EngineClient:
    """options: `EngineArgs`, as JSON knows them; and `shares_experts`, where engines do."""
    options = dict(options)
    if not options.pop(SHARES_EXPERTS, False):
        return client_of([Supervisor(own, command, limits) for own in options_by_engine(options)], options)
    each = options_by_engine(options)
    group, starters = grouped(len(each))
    return client_of(
        [Supervisor(own, command, limits, starter) for own, starter in zip(each, starters, strict=True)], options, group
    )


def options_by_engine(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Each engine has a share of the cores, and GPUs of its own, among those with ranks on the same machine; one alone
    is not bound to any, and neither is one that computes elsewhere."""
    count, on_node = options["data_parallel_size"], max(1, options["data_parallel_size"] // options["nnodes"])
    shares = cpu_shares(on_node, options["cpu_threads"])
    ranks = options["tensor_parallel_size"] * options["pipeline_parallel_size"] * count // options["nnodes"]
    gpus = devices_by_engine(options["device_ids"], max(1, ranks // on_node), on_node)
    found = []
    for number in range(count):
        threads, cpus = shares[number % on_node]
        is_here = options["nnodes"] == 1 or number < on_node
        own = {"engine_number": number, "cpu_threads": threads, "cpus": cpus if is_here else ()}
        if count > 1:
            own["device_ids"] = gpus[number % on_node]
        found.append({**options, **own})
    return found


def client_of(
    supervisors: Sequence[Supervisor], options: dict[str, Any], group: EngineGroup | NoGroup = NO_GROUP
) -> EngineClient:
    if len(supervisors) == 1:
        return supervisors[0]
    return DpClient(supervisors, options["block_size"] or DEFAULT_BLOCK_SIZE, group)


class DpClient:
    """Requests of an engine that is down move to one that is up, but for quarantined ones: those are retried where they
    were, so that a request which kills engines does not go round. Of engines that end together, all go on where they
    were."""

    def __init__(
        self, supervisors: Sequence[Supervisor], block_size: int, group: EngineGroup | NoGroup = NO_GROUP
    ) -> None:
        self._supervisors = supervisors
        self._every = EveryEngine(supervisors)
        self.keep = self._every.keep
        self._group = group
        self._router = Router(len(supervisors), block_size, max_keys=0)  # until the size of a cache is known
        self._states = [EngineState() for _ in supervisors]  # as each last told
        self._updates: asyncio.Queue[Sequence[AnyUpdate]] = asyncio.Queue()
        self._pumps: list[asyncio.Future[None]] = []
        self._deaths: dict[int, EngineDeadError] = {}  # by engine: why it was given up

    @property
    def is_ready(self) -> bool:
        return self._every.is_ready

    @property
    def pids(self) -> list[int]:
        return [supervisor.pid for supervisor in self._supervisors]

    @property
    def last_progress(self) -> float:
        """Of the engine that has made none for the longest time."""
        busy = [supervisor.last_progress for supervisor in self._supervisors if supervisor.num_open]
        return min(busy, default=time.monotonic())

    def counts(self) -> list[EngineCounts]:
        return [count for supervisor in self._supervisors for count in supervisor.counts()]

    def start(self) -> None:
        for number, supervisor in enumerate(self._supervisors):
            supervisor.on_change = partial(self._changed, number)
            supervisor.start()
            self._pumps.append(asyncio.ensure_future(self._pump(number, supervisor)))

    async def wait_ready(self) -> EngineInfo:
        """What holds for all engines."""
        found = await all_or_none([supervisor.wait_ready() for supervisor in self._supervisors])
        least = min(found, key=lambda info: (info.max_model_len, info.num_blocks))
        self._router.max_keys = least.num_blocks
        return least

    def submit(self, entry: JournalEntry) -> None:
        self._supervisors[self._router.route(entry.request, entry.engine)].submit(entry)

    def drop(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            number = self._router.place(request_id)
            if number is not None:
                self._router.ended(request_id)
                self._supervisors[number].drop([request_id])

    async def updates(self) -> AsyncIterator[Sequence[AnyUpdate]]:
        while (batch := await self._updates.get()) is not NO_UPDATES:
            yield batch
        if len(self._deaths) == len(self._supervisors):
            raise next(iter(self._deaths.values()))

    async def stop(self) -> None:
        stopping = asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        await asyncio.sleep(0)  # all were told
        self._group.close("the engines were stopped")
        await stopping
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def states(self, with_blocks: bool) -> list[EngineState]:
        """An engine that does not answer is shown as it last was."""
        answers = await self._every.ask(STATE, with_blocks)
        for number, answer in enumerate(answers):
            if not isinstance(answer, EngineDeadError):
                self._states[number] = answer
                self._router.observe(number, answer.stats.num_running + answer.stats.num_waiting)
        return list(self._states)

    async def call(self, verb: Verb[P, A], payload: P) -> A:
        answer = await self._every.call(verb, payload)
        if verb.forgets_prefixes:
            self._router.forget_prefixes()
        return answer

    async def _pump(self, number: int, supervisor: Supervisor) -> None:
        try:
            async for batch in supervisor.updates():
                self._take(number, batch)
                self._updates.put_nowait(batch)
        except EngineDeadError as error:
            self._deaths[number] = error
            self._group.close(str(error))
            self._changed(number)
        if all(pump.done() for pump in self._pumps if pump is not self._pumps[number]):
            self._updates.put_nowait(NO_UPDATES)

    def _take(self, number: int, batch: Sequence[AnyUpdate]) -> None:
        for update in batch:
            update.engine = number
            if update.finish_reason is not None:
                self._router.ended(update.request_id)
            else:
                self._router.began(update.request_id)

    def _changed(self, number: int) -> None:
        """An engine came or went."""
        if self._supervisors[number].is_ready:
            self._router.up(number)
        else:
            self._router.down(number, for_good=number in self._deaths)
            self._group.left(number)
        if self._router.has_any_up and not self._group.ends_together:
            self._move()

    def _move(self) -> None:
        """Requests that wait for engines which are down go to others."""
        for number, supervisor in enumerate(self._supervisors):
            if not supervisor.is_ready:
                for entry in supervisor.release(everything=number in self._deaths):
                    self.submit(entry)

"""Who makes the engines that several fronts share: starts them, watches them, starts them again, and gives every front
a channel to each."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from cadence.config.parallel import SHARES_EXPERTS
from cadence.core.contract.front_messages import ToFront
from cadence.core.contract.messages import EngineInfo
from cadence.core.errors import EngineDeadError
from cadence.engine.fleet.dp_client import options_by_engine
from cadence.engine.fleet.engine_links import NEVER
from cadence.engine.fleet.every_engine import EveryEngine
from cadence.engine.supervise.async_client import EngineProcess, EngineStarter, ProcessStarter
from cadence.engine.supervise.engine_group import NO_GROUP, EngineGroup, NoGroup, grouped
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import Supervisor
from cadence.process.channel import NO_DESCRIPTOR
from cadence.process.together import all_or_none

MAX_FAILED_STARTS = 10  # in a row; the owner sees no tokens, and takes the deaths that a request causes for such

Send = Callable[[ToFront, int], None]  # (message, descriptor that goes with it)


class EngineOwner:
    """Its supervisors have no requests: those lie in the journals of the fronts."""

    def __init__(self, options: dict[str, Any], command: Sequence[str], limits: SupervisorLimits) -> None:
        options = dict(options)
        shares_experts = options.pop(SHARES_EXPERTS, False)
        own = replace(limits, max_failed_starts=MAX_FAILED_STARTS, probe_after=NEVER)
        each = [{**one, "is_shared": True} for one in options_by_engine(options)]
        self._group: EngineGroup | NoGroup = NO_GROUP
        starters: Sequence[EngineStarter] = [ProcessStarter() for _ in each]
        if shares_experts:
            self._group, starters = grouped(len(each))
        self._supervisors = [
            Supervisor(one, command, own, starter) for one, starter in zip(each, starters, strict=True)
        ]
        self.engines = EveryEngine(self._supervisors)
        self._fronts: dict[int, Send] = {}  # by number, from 1
        self._deaths: dict[int, str] = {}  # by engine: why it was given up
        self._watching: list[asyncio.Future[None]] = []

    @property
    def pids(self) -> list[int]:
        return [supervisor.pid for supervisor in self._supervisors]

    @property
    def is_dead(self) -> bool:
        """Whether all engines were given up."""
        return len(self._deaths) == len(self._supervisors)

    def start(self) -> None:
        for number, supervisor in enumerate(self._supervisors):
            supervisor.on_change = partial(self._changed, number)
            supervisor.start()
            self._watching.append(asyncio.ensure_future(self._watch(number)))

    async def wait_ready(self) -> list[EngineInfo]:
        return await all_or_none([supervisor.wait_ready() for supervisor in self._supervisors])

    def join(self, front: int, send: Send) -> None:
        """A front began, perhaps in the place of one that is gone."""
        self._fronts[front] = send
        for number in range(len(self._supervisors)):
            self._introduce(number, front)

    def leave(self, front: int) -> None:
        self._fronts.pop(front, None)

    async def stop(self) -> None:
        stopping = asyncio.gather(*(supervisor.stop() for supervisor in self._supervisors))
        await asyncio.sleep(0)  # all were told
        self._group.close("the engines were stopped")
        await stopping
        await asyncio.gather(*self._watching, return_exceptions=True)

    async def _watch(self, number: int) -> None:
        try:
            async for _ in self._supervisors[number].updates():
                """There are none: no request is sent from here."""
        except EngineDeadError as error:
            self._deaths[number] = str(error)
            self._group.close(str(error))
            self._changed(number)

    def _changed(self, number: int) -> None:
        if not self._supervisors[number].is_ready:
            self._group.left(number)
        for front in self._fronts:
            self._introduce(number, front)

    def _introduce(self, number: int, front: int) -> None:
        """Nothing is to be said of an engine that is not ready: when it is, this is called again."""
        supervisor, send = self._supervisors[number], self._fronts[front]
        if number in self._deaths:
            return send(ToFront(engine=number, given_up=self._deaths[number]), NO_DESCRIPTOR)
        if supervisor.lacks_ranks:
            return send(ToFront(engine=number, lacks_ranks=supervisor.lacks_ranks), NO_DESCRIPTOR)
        if not supervisor.is_ready or not isinstance(supervisor.engine, EngineProcess):
            return
        ours, theirs = socket.socketpair()
        supervisor.engine.introduce(front, theirs)
        (counts,) = supervisor.counts()
        turn = sorted(self._fronts)[counts.restarts % len(self._fronts)]  # with every restart another front's
        send(ToFront(engine=number, is_turn=front == turn, num_restarts=counts.restarts), ours.detach())

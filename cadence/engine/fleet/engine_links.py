"""The engines of a front that does not own them: a channel to each comes from their owner, and another one when an
engine was started again."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Any

from cadence.config.parallel import SHARES_EXPERTS
from cadence.core.contract.front_messages import ToFront
from cadence.core.errors import EngineDeadError, EngineGivenUpError, RanksMissingError
from cadence.engine.fleet.dp_client import client_of
from cadence.engine.supervise.async_client import RunningEngine
from cadence.engine.supervise.descriptors import DescriptorReserve
from cadence.engine.supervise.engine_client import EngineClient
from cadence.engine.supervise.engine_group import NO_GROUP, OWNERS_GROUP
from cadence.engine.supervise.engine_link import EngineLink
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import Supervisor

# The owner watches, restarts and gives up; a front only waits for the next channel.
NEVER = 10**9
FRONT_LIMITS = SupervisorLimits(
    heartbeat_s=0,
    start_silence_s=0,
    step_s=0,
    stop_s=1.0,
    first_backoff_s=0.001,
    max_backoff_s=0.001,
    gives_up=False,
    probe_after=NEVER,
)


class LinkStarter:
    """Of one engine."""

    def __init__(self) -> None:
        self._came: asyncio.Queue[tuple[socket.socket, bool, int] | EngineDeadError] = asyncio.Queue()

    def put(self, end: socket.socket, is_turn: bool, num_restarts: int) -> None:
        self._came.put_nowait((end, is_turn, num_restarts))

    def give_up(self, why: str) -> None:
        self._came.put_nowait(EngineGivenUpError(why))

    def lack_ranks(self, why: str) -> None:
        self._came.put_nowait(RanksMissingError(why))

    async def start(self, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve) -> RunningEngine:
        """Waits for a channel to an engine that is ready."""
        came = await self._came.get()
        if isinstance(came, EngineDeadError):
            raise came
        return await EngineLink.open(*came)

    def cancel(self) -> None:
        self.give_up("the engine was stopped")


class EngineLinks:
    def __init__(self, num_engines: int) -> None:
        self._starters = [LinkStarter() for _ in range(num_engines)]

    def put(self, message: ToFront, end: socket.socket) -> None:
        self._starters[message.engine].put(end, message.is_turn, message.num_restarts)

    def give_up(self, engine: int, why: str) -> None:
        self._starters[engine].give_up(why)

    def lack_ranks(self, engine: int, why: str) -> None:
        self._starters[engine].lack_ranks(why)

    def open_client(self, options: dict[str, Any], command: Sequence[str], limits: SupervisorLimits) -> EngineClient:
        """A `ClientFactory`."""
        options = dict(options)
        group = OWNERS_GROUP if options.pop(SHARES_EXPERTS, False) else NO_GROUP
        return client_of([Supervisor(options, command, limits, starter) for starter in self._starters], options, group)

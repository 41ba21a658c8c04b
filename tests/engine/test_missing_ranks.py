"""An engine that is started again and lacks ranks of other machines: requests do not wait for them without end, and the
engine does."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from cadence.core.contract.codec import encode
from cadence.core.contract.front_messages import ToFront
from cadence.core.contract.messages import LACKS_RANKS, EngineInfo, FromEngine, ToEngine
from cadence.core.contract.request import FinishReason
from cadence.core.contract.update import AnyUpdate, RequestUpdate
from cadence.core.errors import EngineDeadError
from cadence.core.failure import Failure, FailureCode
from cadence.engine.core_process import receive_options
from cadence.engine.fleet.engine_links import FRONT_LIMITS, EngineLinks, LinkStarter
from cadence.engine.fleet.engine_owner import EngineOwner
from cadence.engine.supervise.async_client import RunningEngine
from cadence.engine.supervise.descriptors import DescriptorReserve
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import Supervisor
from cadence.entrypoints.server.api_process import ParentLink
from cadence.process.channel import Channel
from tests.helpers.fake_engine import make_entry

INFO = EngineInfo(10, 100, 50, "toy", "cpu", 1, False, False)
WHY = f"{LACKS_RANKS} within 7 s; missing: 1"
LIMITS = SupervisorLimits(rejoin_s=7.0, first_backoff_s=0.001, max_failed_starts=2)


class ToldEngine:
    """Says what it is told to."""

    pid = 1
    is_turn = True
    num_restarts = 0

    def __init__(self) -> None:
        self.says: asyncio.Queue[FromEngine] = asyncio.Queue()
        self.added: list[str] = []

    def send(self, commands: ToEngine) -> None:
        self.added += [add.request_id for add in commands.add]
        if commands.stop:
            self.kill()

    async def messages(self) -> AsyncIterator[FromEngine]:
        while not (message := await self.says.get()).fatal:
            yield message
        yield message

    async def end(self, grace_s: float) -> str:
        return "it ended"

    def kill(self) -> None:
        self.says.put_nowait(FromEngine(fatal="killed"))


class ToldStarter:
    """Engines that the test speaks for, one after the other."""

    def __init__(self) -> None:
        self.options: list[dict[str, Any]] = []
        self.engines: asyncio.Queue[ToldEngine] = asyncio.Queue()

    async def start(self, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve) -> RunningEngine:
        engine = ToldEngine()
        self.options.append(options)
        self.engines.put_nowait(engine)
        return engine

    def cancel(self) -> None:
        """A start takes no time."""


@contextlib.asynccontextmanager
async def supervised(options: dict[str, Any]) -> AsyncIterator[tuple[Supervisor, ToldStarter]]:
    starter = ToldStarter()
    supervisor = Supervisor(options, ("no command",), LIMITS, starter)
    supervisor.start()
    try:
        yield supervisor, starter
    finally:
        await supervisor.stop()


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0)


async def first(updates: AsyncIterator[Sequence[AnyUpdate]]) -> RequestUpdate:
    (update,) = await anext(updates)
    assert isinstance(update, RequestUpdate)
    return update


def run(work: Awaitable[None]) -> None:
    asyncio.run(asyncio.wait_for(work, 60))


def test_requests_fail_and_the_engine_waits_for_its_ranks_again() -> None:
    async def check() -> None:
        async with supervised({"nnodes": 2}) as (supervisor, starter):
            engine, updates = await starter.engines.get(), supervisor.updates()
            engine.says.put_nowait(FromEngine(ready=INFO))
            supervisor.submit(make_entry("a", 1, 5))
            await until(lambda: engine.added == ["a"])
            engine.says.put_nowait(FromEngine(fatal="the worker of rank 1 is gone"))
            for number in range(2 * LIMITS.max_failed_starts):
                engine = await starter.engines.get()
                if number:
                    supervisor.submit(make_entry("b", 1, 5))  # one that came meanwhile
                engine.says.put_nowait(FromEngine(fatal=WHY))
                update = await first(updates)
                assert update.request_id == ("b" if number else "a")
                assert update.finish_reason is FinishReason.ERROR
                assert update.stop_reason == Failure(FailureCode.ENGINE_DOWN, WHY)
                assert supervisor.lacks_ranks == WHY and not supervisor.num_open
            engine = await starter.engines.get()
            engine.says.put_nowait(FromEngine(ready=INFO))
            supervisor.submit(make_entry("c", 1, 5))
            await until(lambda: engine.added == ["c"])
            assert not supervisor.lacks_ranks
        assert "join_s" not in starter.options[0], "the first time nodes are started by hand, and have long"
        assert {options["join_s"] for options in starter.options[1:]} == {LIMITS.rejoin_s}

    run(check())


def test_the_first_start_that_lacks_ranks_is_the_last() -> None:
    async def check() -> None:
        async with supervised({"nnodes": 2}) as (supervisor, starter):
            (await starter.engines.get()).says.put_nowait(FromEngine(fatal=WHY))
            with pytest.raises(EngineDeadError, match=LACKS_RANKS):
                await supervisor.wait_ready()

    run(check())


def test_an_engine_of_one_machine_is_told_nothing_of_it() -> None:
    async def check() -> None:
        async with supervised({"nnodes": 1}) as (_, starter):
            engine = await starter.engines.get()
            engine.says.put_nowait(FromEngine(ready=INFO))
            engine.says.put_nowait(FromEngine(fatal="something else"))
            await starter.engines.get()
        assert starter.options == [{"nnodes": 1}] * 2

    run(check())


def test_fronts_that_share_the_engine_fail_their_requests_too() -> None:
    """The owner tells every front, and those that begin meanwhile."""

    async def check() -> None:
        options = {"data_parallel_size": 1, "nnodes": 1, "cpu_threads": 1, "tensor_parallel_size": 1}
        owner = EngineOwner({**options, "pipeline_parallel_size": 1, "device_ids": ()}, ("none",), LIMITS)
        owner._supervisors[0].lacks_ranks = WHY
        told: list[ToFront] = []
        owner.join(1, lambda message, descriptor: told.append(message))
        assert told == [ToFront(engine=0, lacks_ranks=WHY)]

        links = EngineLinks(1)
        ours, theirs = socket.socketpair()
        parent = ParentLink(Channel(ours), links, b"", "")
        parent.take(encode(told[0]))
        (starter,) = links._starters
        assert isinstance(starter, LinkStarter)
        front = Supervisor({}, (), replace(FRONT_LIMITS, stop_s=0.1), starter)
        front.submit(make_entry("a", 1, 5))
        front.start()
        update = await first(front.updates())
        assert (update.request_id, update.stop_reason) == ("a", Failure(FailureCode.ENGINE_DOWN, WHY))
        await front.stop()
        parent._channel.close()
        theirs.close()

    run(check())


def test_the_time_to_join_reaches_the_engine() -> None:
    ours, theirs = socket.socketpair()
    channel = Channel(ours)
    Channel(theirs).send(b'{"model": "m", "join_s": 7.0}')
    told = receive_options(channel)
    assert told.join_s == 7.0 and not told.is_plain

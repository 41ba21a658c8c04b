"""Verbs of the control table on their way: a made-up one goes through the engine process and its ranks, and is replayed
after a restart; none is waited for beyond its deadline."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
from collections.abc import AsyncIterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from cadence.core.adapter import AdapterSpec
from cadence.core.contract.control import (
    ADD_ADAPTER,
    CONTROL,
    LIST_ADAPTERS,
    PIN_ADAPTER,
    REMOVE_ADAPTER,
    RESET_ENCODER_CACHE,
    RESET_PREFIX_CACHE,
    STATE,
    Where,
)
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.engine.adapter_preparer import AdapterPreparer
from cadence.engine.core import EngineCore
from cadence.engine.fleet.dp_client import DpClient
from cadence.engine.intake import Intake
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.sleeping import EngineSleep
from cadence.engine.supervise.control_journal import ControlJournal
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import Supervisor
from cadence.executor.local.processes import ProcessExecutor
from cadence.scheduler.features.adapters.slots import AdapterSlots
from cadence.scheduler.features.media.cache import EncoderCache
from tests.helpers.control_engine import BAD, CLEAR, DOUBLE, ENGINE_COMMAND, GET, SET, STICK, UNKNOWN

pytestmark = [pytest.mark.engine, pytest.mark.warm]

LIMITS = SupervisorLimits(heartbeat_s=120.0, tick_s=0.05, first_backoff_s=0.001, probe_after=10**9)


@contextlib.asynccontextmanager
async def supervised() -> AsyncIterator[Supervisor]:
    supervisor = Supervisor({"model": "none"}, ENGINE_COMMAND, LIMITS)
    supervisor.start()
    try:
        await supervisor.wait_ready()
        yield supervisor
    finally:
        await supervisor.stop()


async def restarted(supervisor: Supervisor, times: int) -> None:
    """The engine has been, and has what is replayed."""
    while not (supervisor.counts()[0].restarts == times and supervisor.is_ready):
        await asyncio.sleep(0.005)
    await supervisor._replaying


def test_a_made_up_verb_reaches_the_ranks_and_is_replayed() -> None:
    async def check() -> None:
        async with supervised() as supervisor:
            assert await supervisor.call(SET, 7) is None
            assert await supervisor.call(GET, None) == [7, 7], "of two ranks"
            assert await supervisor.call(DOUBLE, 21) == 42, "by the engine itself"
            os.kill(supervisor.pid, signal.SIGKILL)
            await restarted(supervisor, 1)
            assert await supervisor.call(GET, None) == [7, 7]
            await supervisor.call(CLEAR, None)
            os.kill(supervisor.pid, signal.SIGKILL)
            await restarted(supervisor, 2)
            assert await supervisor.call(GET, None) == [0, 0], "what was dropped is not replayed"

    asyncio.run(asyncio.wait_for(check(), 120))


def test_what_a_call_is_refused_for_is_its_answer() -> None:
    """And the engine lives on."""

    async def check() -> None:
        async with supervised() as supervisor:
            with pytest.raises(InvalidRequestError, match="not this number") as refused:
                await supervisor.call(SET, BAD)
            assert refused.value.field == "number" and not supervisor._control.kept()
            for verb, payload in ((UNKNOWN, None), (SET, "seven")):
                with pytest.raises(InvalidRequestError, match=f"could not read the call '{verb.name}'"):
                    await supervisor.call(verb, payload)  # type: ignore[arg-type]
            with pytest.raises(InvalidRequestError, match="no such call"):
                await supervisor.call(LIST_ADAPTERS, None)
            assert await supervisor.call(GET, None) == [0, 0] and not supervisor.counts()[0].restarts

    asyncio.run(asyncio.wait_for(check(), 120))


def test_a_rank_that_is_stuck_is_waited_for_until_the_deadline() -> None:
    """The front hears of it, the engine ends of it, and the next one has what it had."""

    async def check() -> None:
        async with supervised() as supervisor:
            await supervisor.call(SET, 7)
            with pytest.raises(
                EngineDeadError, match=r"the engine gave no answer to 'stick' for 0\.2 s|the engine died"
            ):
                await supervisor.call(STICK, None)
            await restarted(supervisor, 1)
            assert await supervisor.call(GET, None) == [7, 7]

    asyncio.run(asyncio.wait_for(check(), 120))


def test_an_engine_that_is_stuck_is_waited_for_until_the_deadline() -> None:
    async def check() -> None:
        async with supervised() as supervisor:
            os.kill(supervisor.pid, signal.SIGSTOP)
            with pytest.raises(EngineDeadError, match=r"the engine gave no answer to 'state' for 0\.05 s"):
                await supervisor.call(replace(STATE, deadline_s=0.05), False)
            assert not supervisor._calls
            os.kill(supervisor.pid, signal.SIGKILL)
            await restarted(supervisor, 1)

    asyncio.run(asyncio.wait_for(check(), 120))


class StuckRanks:
    """A `RankGroup`, and what it has of its ranks: it takes messages and says nothing."""

    death = ""
    pids = (1, 2)

    def __init__(self) -> None:
        self.ranks = self.commands = self
        self.results = [self, self]

    def write(self, message: bytes, timeout_s: float = math.inf) -> None: ...

    def read(self, timeout_s: float = math.inf) -> bytes:
        assert timeout_s <= 0.01, "this would be for ever"
        raise TimeoutError

    def end(self) -> None: ...


def test_ranks_that_were_waited_for_in_vain_are_not_asked_again() -> None:
    """An answer that comes late would be taken for that to another call."""
    executor = ProcessExecutor(StuckRanks(), 0)  # type: ignore[arg-type]
    executor.check()
    with pytest.raises(EngineDeadError, match=r"a rank gave no answer to 'numbers' for 0\.01 s"):
        executor.call(replace(GET, deadline_s=0.01), None)
    for again in (executor.check, executor.result, lambda: executor.call(GET, None)):
        with pytest.raises(EngineDeadError, match="no answer to 'numbers'"):
            again()


class BusyCore:
    def call(self, verb: Any, payload: Any) -> Future[Any]:
        return Future()

    def prepare(self) -> None: ...


def test_an_engine_of_this_process_is_waited_for_until_the_deadline() -> None:
    engine: Any = SimpleNamespace(_core=BusyCore())
    with pytest.raises(EngineDeadError, match=r"the engine gave no answer to 'double' for 0\.01 s"):
        LLMEngine._call(engine, replace(DOUBLE, deadline_s=0.01), 1)


def adapter(number: int, path: str = "/a") -> AdapterSpec:
    return AdapterSpec("a", path, number=number)


def test_adapters_are_kept_until_they_are_removed() -> None:
    journal = ControlJournal()
    journal.note(ADD_ADAPTER, adapter(1))
    journal.note(PIN_ADAPTER, 1)
    journal.note(ADD_ADAPTER, adapter(2))
    for verb, payload in ((STATE, True), (RESET_PREFIX_CACHE, True), (LIST_ADAPTERS, None)):
        journal.note(verb, payload)  # type: ignore[arg-type]
    journal.note(ADD_ADAPTER, adapter(1, "/b"))
    kept = [(call.name, call.verb, call.payload) for call in journal.kept()]
    assert kept == [
        ("adapter 1", ADD_ADAPTER, adapter(1, "/b")),
        ("the pin of adapter 1", PIN_ADAPTER, 1),
        ("adapter 2", ADD_ADAPTER, adapter(2)),
    ], "in the order in which they came: a pin keeps its adapter from making room for later ones"
    journal.note(REMOVE_ADAPTER, 1)
    assert [call.name for call in journal.kept()] == ["adapter 2"]


class ToldSupervisor:
    """Answers what it is told to."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer
        self.kept: list[Any] = []

    async def call(self, verb: Any, payload: Any) -> Any:
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def keep(self, verb: Any, payload: Any) -> None:
        self.kept.append((verb, payload))


def call_several(verb: Any, payload: Any, *answers: Any) -> tuple[Any, list[list[Any]]]:
    supervisors = [ToldSupervisor(answer) for answer in answers]

    async def ask() -> Any:
        return await DpClient(supervisors, 16).call(verb, payload)  # type: ignore[arg-type]

    return asyncio.run(ask()), [supervisor.kept for supervisor in supervisors]


def test_several_engines_give_one_answer() -> None:
    """An engine that is down has the call when it is back."""
    down = EngineDeadError("the engine is starting")
    assert call_several(ADD_ADAPTER, adapter(1), True, down) == (True, [[], [(ADD_ADAPTER, adapter(1))]])
    assert call_several(REMOVE_ADAPTER, 1, False, True)[0] is True, "one of them had it"
    assert call_several(RESET_PREFIX_CACHE, False, True, False)[0] is False
    assert call_several(RESET_PREFIX_CACHE, False, True, down)[0] is True, "one that is down has no cache"
    assert call_several(LIST_ADAPTERS, None, [2, 1], [3, 2])[0] == [1, 2, 3]
    with pytest.raises(EngineDeadError, match="starting"):
        call_several(LIST_ADAPTERS, None, down, down)
    with pytest.raises(InvalidRequestError, match="no"):
        call_several(PIN_ADAPTER, 1, True, InvalidRequestError("no"))


def test_the_engine_carries_out_every_verb_that_is_not_the_ranks() -> None:
    preparer: Any = AdapterPreparer(lambda verb, payload: None, 4, AdapterSlots(2))
    core = EngineCore(None, None, Intake([preparer], preparer.handlers()), 1, False)  # type: ignore[arg-type]
    core.handle(RESET_ENCODER_CACHE, EncoderCache(1).forget)
    EngineSleep(core)
    assert core._handlers.keys() == {verb.name for verb in CONTROL.values() if verb.at is Where.ENGINE}
    assert all(verb.deadline_s > 0 for verb in CONTROL.values())

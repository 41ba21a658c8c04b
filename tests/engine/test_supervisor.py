"""The supervisor with real processes, most of them toys that start in no time: deaths at every wrong moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.engine.supervise.journal import JournalEntry
from cadence.engine.supervise.lifecycle import EngineStatus
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import entry_of
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.processes import children_of
from tests.helpers.wide import KILLED_AND_STOPPED
from tests.server.engines import GARBLED, HANGS, UNSHOWABLE, engine_command
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

# A busy machine may keep an engine waiting for seconds: only where one hangs on purpose is silence a death.
PATIENT = SupervisorLimits(heartbeat_s=120.0, step_s=120.0, stop_s=1.0, tick_s=0.05, first_backoff_s=0.01)
ALERT = replace(PATIENT, heartbeat_s=5.0, step_s=5.0)

Answer = tuple[list[int], Any, Any]  # tokens, finish reason, stop reason


@contextlib.asynccontextmanager
async def running(
    model: Path, engine: str = "toy", limits: SupervisorLimits = PATIENT, max_model_len: int = 512
) -> AsyncIterator[AsyncLLM]:
    positions = {"max_position_embeddings": max_model_len}
    args = EngineArgs(model=str(model), max_model_len=max_model_len, hf_overrides=positions)
    llm = await AsyncLLM.start(args, engine_command=engine_command(engine), limits=limits)
    try:
        yield llm
    finally:
        await llm.shutdown(drain=False)


async def ask(
    llm: AsyncLLM, number: int, max_tokens: int = 100, extra: tuple[int, ...] = ()
) -> tuple[list[int], Any, Any]:
    params = SamplingParams(
        max_tokens=max_tokens, ignore_eos=True, temperature=0, output_kind=RequestOutputKind.DELTA, detokenize=False
    )
    tokens: list[int] = []
    async for output in llm.generate([5 + number, 6, 7, *extra], params, f"{number}-{extra}"):
        tokens += output.outputs[0].token_ids
    return tokens, output.outputs[0].finish_reason, output.outputs[0].stop_reason


async def many(llm: AsyncLLM, count: int, max_tokens: int = 100) -> list[Answer]:
    return list(await asyncio.gather(*(ask(llm, number, max_tokens) for number in range(count))))


async def under_way(llm: AsyncLLM, count: int) -> None:
    """So many requests are open, and each has tokens."""
    while sum(bool(entry.token_ids) for entry in llm._supervisor._logic.journal) < count:
        await asyncio.sleep(0.001)


async def next_engine(llm: AsyncLLM, old: int, seconds: float = 120.0) -> int:
    """The pid of the next engine process, as soon as there is one."""
    ends = time.monotonic() + seconds
    while llm.engine_pid in (0, old):
        assert time.monotonic() < ends, "no engine was started"
        await asyncio.sleep(0.001)
    return llm.engine_pid


async def until_ready(llm: AsyncLLM, seconds: float = 120.0) -> None:
    ends = time.monotonic() + seconds
    while not llm.is_ready():
        assert time.monotonic() < ends, llm._supervisor.status
        await asyncio.sleep(0.01)


@pytest.fixture(scope="module")
def model(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


def test_a_payload_nobody_can_decode_fails_alone(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            other = asyncio.ensure_future(ask(llm, 1))
            request = (await llm.inputs.process("bad", [5, 6], SamplingParams())).request
            updates = llm._supervisor._updates
            llm._supervisor.submit(JournalEntry(request, b"\xc1 not msgpack"))
            while "bad" in {entry.request_id for entry in llm._supervisor._logic.journal}:
                await asyncio.sleep(0.01)
            assert updates is llm._supervisor._updates and (await other)[1] == "length"
            assert llm.num_restarts == 0

    asyncio.run(check())


def test_a_number_no_message_can_carry_is_refused_at_once(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            for field in ("n", "top_k", "max_tokens", "min_tokens", "stream_interval", "priority"):
                params = SamplingParams(max_tokens=None)
                priority = 2**64 if field == "priority" else 0
                if field != "priority":
                    setattr(params, field, 2**64)
                with pytest.raises(InvalidRequestError, match=field):
                    async for _ in llm.generate([5, 6], params, "large", priority=priority):
                        pass
                assert llm.is_ready() and not llm._supervisor._logic.journal._entries
            assert (await ask(llm, 1))[1] == "length"

    asyncio.run(check())


def test_what_cannot_be_encoded_when_it_comes_back_fails_alone(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            alone = await many(llm, 4, 300)
            streams = asyncio.gather(*(ask(llm, number, 300) for number in range(4)), ask(llm, 9, 300))
            await under_way(llm, 5)
            doomed = next(entry for entry in llm._supervisor._logic.journal if entry.request_id.startswith("9-"))
            doomed.request.params.top_k = 2**64
            os.kill(llm.engine_pid, signal.SIGKILL)
            *others, failed = await streams
            assert others == alone
            assert failed[1] == "error" and "top_k" in failed[2]

    asyncio.run(check())


@pytest.mark.parametrize("number", KILLED_AND_STOPPED)
def test_two_deaths_in_a_row_the_second_while_handing_over(model: Path, number: int) -> None:
    async def check() -> None:
        async with running(model, limits=ALERT) as llm:
            alone = await many(llm, 10, 400)
            streams = asyncio.ensure_future(many(llm, 10, 400))
            await under_way(llm, 10)
            first = llm.engine_pid
            os.kill(first, number)
            second = await next_engine(llm, first)
            while llm.engine_pid == second and not any(e.in_engine for e in llm._supervisor._logic.journal):
                await asyncio.sleep(0)
            os.kill(second, number)
            assert await streams == alone

    asyncio.run(check())


def test_a_step_that_hangs_ends_the_engine_and_its_cause(model: Path) -> None:
    async def check() -> None:
        async with running(model, limits=ALERT) as llm:
            alone = await many(llm, 3)
            poison = asyncio.ensure_future(ask(llm, 9, extra=(HANGS,)))
            await under_way(llm, 1)
            assert await many(llm, 3) == alone
            assert (await poison)[1] == "error"

    asyncio.run(check())


def test_stopping_ends_the_engine_in_every_state(model: Path) -> None:
    async def check() -> None:
        args = EngineArgs(model=str(model), max_model_len=512)
        before = {child.pid for child in psutil.Process().children()}
        starting = asyncio.ensure_future(AsyncLLM.start(args, limits=PATIENT))  # the real engine: it takes a while
        while not (new := [child for child in psutil.Process().children() if child.pid not in before]):
            assert not starting.done()
            await asyncio.sleep(0.01)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert not any(child.is_running() for child in new)
        async with running(model) as llm:
            pid = llm.engine_pid
            os.kill(pid, signal.SIGSTOP)
        assert not Path(f"/proc/{pid}").exists() and llm._supervisor.status is EngineStatus.STOPPED

    asyncio.run(check())


def test_a_supervisor_that_fails_ends_every_stream(model: Path) -> None:
    """Never a silent hang: streams get an error, health says so, and the server is told."""

    async def check() -> None:
        async with running(model) as llm:
            endless = asyncio.ensure_future(ask(llm, 1, 400))
            await under_way(llm, 1)
            garbled = asyncio.ensure_future(ask(llm, 2, extra=(GARBLED,)))
            with pytest.raises(EngineDeadError, match="log"):
                await garbled
            with pytest.raises(EngineDeadError, match="log"):
                await endless
            assert llm.dead.is_set() and not llm.is_ready()
            assert llm._supervisor.status is EngineStatus.GIVEN_UP
            with pytest.raises(EngineDeadError):
                await llm.check_health()

    asyncio.run(check())


def test_text_that_cannot_be_made_fails_one_stream(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            unshowable = asyncio.gather(ask(llm, 0, 300, extra=(UNSHOWABLE,)), return_exceptions=True)
            others = await many(llm, 3, 300)
            (failed,) = await unshowable
            assert isinstance(failed, RuntimeError) and [reason for _, reason, _ in others] == ["length"] * 3
            assert not llm._outputs.num_unfinished() and llm.is_ready()

    asyncio.run(check())


def test_a_paused_engine_keeps_its_requests_also_over_its_death(model: Path) -> None:
    """They have no more tokens until the engine is resumed, and then those that they would have had."""

    async def paused() -> None:
        async with running(model, max_model_len=60_000) as llm:
            reading = asyncio.ensure_future(ask(llm, 0, 50_000))  # more than it can have by the time of the pause
            await under_way(llm, 1)
            await llm.pause_generation(mode="keep", clear_cache=False)
            await llm.engine_states()  # all that the engine had sent has come
            (entry,) = llm._supervisor._logic.journal
            held = list(entry.token_ids)
            late = asyncio.ensure_future(ask(llm, 1, 3))
            old = llm.engine_pid
            for _ in range(10):
                await llm.engine_states()
            assert entry.token_ids == held and not late.done() and await llm.is_paused()
            assert llm.last_step_age() == 0.0
            os.kill(old, signal.SIGKILL)
            await next_engine(llm, old)
            while not llm.is_ready():
                await asyncio.sleep(0.001)
            for _ in range(10):
                await llm.engine_states()
            assert entry.token_ids == held and not late.done()
            await llm.resume_generation()
            assert (await late)[1] == "length"
            while len(entry.token_ids) < len(held) + 50:
                await asyncio.sleep(0.001)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            tokens = list(entry.token_ids)
            assert (await ask(llm, 0, len(tokens)))[0] == tokens

    asyncio.run(paused())


def test_an_id_may_be_used_again_at_once(model: Path) -> None:
    """What the engine still says of the request that left is not taken for news of the one that came."""

    async def check() -> None:
        async with running(model) as llm:
            expected = await ask(llm, 1)
            for _ in range(20):
                stream = llm.generate([9, 9], SamplingParams(max_tokens=400, ignore_eos=True), "1-()")
                await anext(stream)
                await stream.aclose()
                assert await ask(llm, 1) == expected

    asyncio.run(check())


def engine_of(server: ServerProcess) -> int:
    (engine,) = children_of(server.process.pid, "engines")
    return engine.pid


def test_a_stopped_engine_is_replaced_under_a_real_server(model: Path) -> None:
    """And does not outlive a server that is killed."""
    flags = ("--engine-heartbeat-timeout", "5", "--max-model-len", "512")
    with ServerProcess(model, *flags, engine="toy") as server, server.client() as client:
        engine = engine_of(server)
        body = {"prompt": [5, 6], "max_tokens": 20, "ignore_eos": True, "temperature": 0}
        expected = client.post("/v1/completions", json=body).json()["choices"]
        os.kill(engine, signal.SIGSTOP)
        assert client.post("/v1/completions", json=body).json()["choices"] == expected
        assert "cadence:engine_restarts_total" in client.get("/metrics").text
        assert client.get("/readyz").status_code == 200
        process = psutil.Process(engine_of(server))
        process.suspend()
        server.process.kill()
        process.wait(timeout=240)


def test_entries_are_encoded_before_anybody_knows_of_them(model: Path) -> None:
    async def check() -> None:
        async with running(model) as llm:
            request = (await llm.inputs.process("x", [5, 6], SamplingParams())).request
            request.params.seed = 2**70
            with pytest.raises(InvalidRequestError, match="seed"):
                entry_of(request)

    asyncio.run(check())

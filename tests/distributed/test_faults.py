"""Processes killed and stopped under load: noticed soon, replaced, and every stream ends with the same tokens."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError
from cadence.distributed.mesh import Mesh
from cadence.distributed.ring import RingClosedError
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.executor.local.local_ranks import LocalRanks
from cadence.executor.local.rank_group import RankGroup
from cadence.executor.worker.wire import Seat
from tests.helpers.leftovers import still_running
from tests.helpers.processes import children_of
from tests.helpers.wide import KILLED_AND_STOPPED
from tests.server.engines import engine_command

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "num_gpu_blocks_override": 2000,
    "distributed_executor_backend": "mp",
}
HEARTBEAT_S = 5.0  # of the engine: what a busy machine does not keep it from
STREAMS, TOKENS = 8, 200
STRUCK = [
    pytest.param(signal.SIGKILL, 1, id="killed-1"),
    pytest.param(signal.SIGSTOP, 0, id="stopped-0"),
    pytest.param(signal.SIGKILL, 0, id="killed-0", marks=pytest.mark.wide),
    pytest.param(signal.SIGSTOP, 1, id="stopped-1", marks=pytest.mark.wide),
]


class FaultServer:
    """One AsyncLLM, its two workers, and the event loop it lives in."""

    def __init__(self, directory: Path, **options: Any) -> None:
        self.runner = asyncio.Runner()
        limits = SupervisorLimits(heartbeat_s=HEARTBEAT_S)
        args = EngineArgs(model=str(directory), **options)
        self.llm: AsyncLLM = self.runner.run(AsyncLLM.start(args, limits=limits))
        self.num_tokens = 0  # that have come
        self.undisturbed = self.runner.run(self.streams())

    def workers(self) -> list[psutil.Process]:
        """By rank."""
        workers = children_of(self.llm.engine_pid, "cadence.executor.worker_process")
        assert len(workers) == 2
        return workers

    async def streams(self, strike: Callable[[], int] | None = None) -> list[list[int]]:
        """The tokens of all; meanwhile `strike` strikes a process, and the engine dies of that."""
        self.num_tokens = 0
        jobs = [asyncio.ensure_future(self._stream(number)) for number in range(STREAMS)]
        if strike is not None:
            while self.num_tokens < 3 * STREAMS:
                await asyncio.sleep(0.001)
            pid = self.llm.engine_pid
            assert strike()
            while self.llm.engine_pid == pid:
                await asyncio.sleep(0.01)
        return [await job for job in jobs]

    async def _stream(self, number: int) -> list[int]:
        params = SamplingParams(
            temperature=number % 2, seed=number, max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA
        )
        tokens: list[int] = []
        async for output in self.llm.generate([5 + number, 6, 7], params, f"{number}"):
            tokens += output.outputs[0].token_ids
            self.num_tokens += len(output.outputs[0].token_ids)
        return tokens

    def close(self) -> None:
        self.runner.run(self.llm.shutdown(drain=False))
        self.runner.close()


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def server(directory: Path) -> Iterator[FaultServer]:
    made = FaultServer(directory, **OPTIONS, pipeline_parallel_size=2)  # its workers are stages
    yield made
    made.close()


@pytest.mark.parametrize(("sent", "rank"), STRUCK)
def test_streams_go_on_when_a_worker_is_struck(server: FaultServer, sent: signal.Signals, rank: int) -> None:
    workers, restarts = server.workers(), server.llm.num_restarts
    worker = workers[rank]

    def strike() -> int:
        os.kill(worker.pid, sent)
        return worker.pid

    assert server.runner.run(server.streams(strike)) == server.undisturbed
    assert server.llm.num_restarts == restarts + 1
    assert not still_running(workers)


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_workers_end_with_their_engine(server: FaultServer, sent: signal.Signals) -> None:
    """Also one that is stopped itself."""
    workers, engine = server.workers(), psutil.Process(server.llm.engine_pid)

    def strike() -> int:
        os.kill(workers[0].pid, signal.SIGSTOP)
        os.kill(engine.pid, sent)
        return engine.pid

    assert server.runner.run(server.streams(strike)) == server.undisturbed
    assert not still_running([engine, *workers])


def test_an_idle_engine_notices_a_dead_worker(server: FaultServer) -> None:
    pid = server.llm.engine_pid
    os.kill(server.workers()[1].pid, signal.SIGKILL)
    server.runner.run(asyncio.wait_for(until(lambda: server.llm.engine_pid != pid), 120))
    assert server.runner.run(server.streams()) == server.undisturbed


async def until(happened: Callable[[], bool]) -> None:
    while not happened():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_an_engine_in_this_process_says_what_its_worker_died_of(
    server: FaultServer, directory: Path, sent: signal.Signals
) -> None:
    """Descriptors are counted when processes have been started before."""
    fds = len(os.listdir("/proc/self/fd"))
    engine = LLMEngine.from_engine_args(EngineArgs(model=str(directory), **OPTIONS))
    engine.add_request("x", [5, 6, 7], SamplingParams(max_tokens=500, ignore_eos=True))
    engine.step()
    (pid,) = engine._core._executor.pids  # type: ignore[attr-defined]
    os.kill(pid, sent)
    with pytest.raises(EngineDeadError, match=f"rank 0.*{'SIGKILL' if sent == signal.SIGKILL else 'stopped'}"):
        while True:
            engine.step()
    engine.shutdown()
    assert not psutil.pid_exists(pid)
    assert len(os.listdir("/proc/self/fd")) == fds


def test_an_engine_has_its_time_to_stop_though_its_front_was_held_up(directory: Path) -> None:
    """An event loop that did something else for longer than an engine has to stop: the engine is told, and ends by
    itself. One that is killed tells the nodes of its ranks nothing, and they wait for another."""

    async def check() -> None:
        limits = SupervisorLimits(stop_s=2.0)
        args = EngineArgs(model=str(directory), max_model_len=512)
        llm = await AsyncLLM.start(args, engine_command=engine_command("toy"), limits=limits)
        child = llm._supervisor.engine._child  # type: ignore[union-attr]
        time.sleep(limits.stop_s + 0.5)  # not the loop's
        await llm.shutdown(drain=False)
        assert child.status == 0

    asyncio.run(check())


SLEEPS = [sys.executable, "-c", "import time; time.sleep(3600)"]


@contextlib.contextmanager
def closing_group(seats: list[Seat], **options: float) -> Iterator[tuple[RankGroup, LocalRanks]]:
    """Of workers that do nothing."""
    ranks = LocalRanks(seats, SLEEPS, **options)
    group = RankGroup(ranks)
    try:
        yield group, ranks
    finally:
        group.end()


def test_all_ranks_are_told_when_one_dies() -> None:
    """Whatever they wait for: a command, those of their stage, or another stage."""
    mesh = Mesh(0, 2, 2)
    with closing_group([Seat(mesh.at(rank), 1) for rank in range(4)]) as (group, ranks):
        areas = ranks._shared.all()
        assert len(areas) == 2 + 2 * 2
        os.kill(ranks.pids[2], signal.SIGKILL)
        for reader in ranks.results:
            with pytest.raises(RingClosedError):
                reader.read(60)
        assert "rank 2" in group.death and "SIGKILL" in group.death
        assert ranks._ring.is_closed
        assert all(area._functions.is_aborted(area.address) for area in areas)  # type: ignore[attr-defined]


def test_workers_without_heartbeats_are_ended() -> None:
    """Processes that run and say nothing, which the system does not call stopped."""
    with closing_group([Seat(Mesh(rank, 2), 1) for rank in range(2)], silence_s=0.5) as (group, ranks):
        processes = [psutil.Process(pid) for pid in ranks.pids]
        with pytest.raises(RingClosedError):
            ranks.results[0].read(60)
        assert "gave no heartbeat for 0.5 s" in group.death
    assert not still_running(processes)


def test_a_worker_outlives_the_thread_that_asked_for_it_and_not_the_process(directory: Path) -> None:
    """The engine is made in a thread that ends, and is used; then its process exits without a word."""
    script = f"""
import os, threading
from cadence import LLM, SamplingParams
made = []
def make(): made.append(LLM({str(directory)!r}, **{OPTIONS!r}))
thread = threading.Thread(target=make)
thread.start(); thread.join()
params = SamplingParams(max_tokens=4, ignore_eos=True)
print(len(made[0].generate([[5, 6]], params, use_tqdm=False)[0].outputs[0].token_ids))
import psutil
print(psutil.Process().children()[0].pid, flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=200, check=True)
    count, pid = map(int, done.stdout.split()[-2:])
    assert count == 4
    ends = time.monotonic() + 60
    while psutil.pid_exists(pid) and time.monotonic() < ends:
        time.sleep(0.01)
    assert not psutil.pid_exists(pid)

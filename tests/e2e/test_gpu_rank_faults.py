"""Ranks on a GPU that are killed and stopped under load: noticed soon, replaced, and every stream ends with the same
tokens. Here they share one device; the harness is that of the CPU's ranks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

psutil = pytest.importorskip("psutil")

from tests.distributed.test_faults import FaultServer, until  # noqa: E402
from tests.helpers.leftovers import still_running  # noqa: E402

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "max_model_len": 512,
    "kv_cache_memory_bytes": 1 << 26,
    "enforce_eager": True,  # each restart would record graphs anew
    "device_ids": [0, 0],
    "deterministic": True,  # what was streamed is computed anew as a prompt
}
LAYOUTS = {"TP2": {"tensor_parallel_size": 2}, "PP2": {"pipeline_parallel_size": 2}}
PATIENCE_S = 120.0  # for all streams of a test, a restart among them


@pytest.fixture(scope="module", params=LAYOUTS)
def server(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Iterator[FaultServer]:
    made = FaultServer(tiny_model("llama"), **OPTIONS, **LAYOUTS[request.param])
    yield made
    made.close()


def streams(server: FaultServer, strike: Callable[[], int] | None = None) -> list[list[int]]:
    return server.runner.run(asyncio.wait_for(server.streams(strike), PATIENCE_S))


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_go_on_when_a_rank_is_struck(server: FaultServer, sent: signal.Signals, rank: int) -> None:
    workers, restarts = server.workers(), server.llm.num_restarts

    def strike() -> int:
        os.kill(workers[rank].pid, sent)
        return workers[rank].pid

    assert streams(server, strike) == server.undisturbed
    assert server.llm.num_restarts == restarts + 1
    assert not still_running(workers)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_ranks_end_with_their_engine(server: FaultServer, sent: signal.Signals) -> None:
    """Also one that is stopped itself: it would hold memory of the device."""
    workers, engine = server.workers(), psutil.Process(server.llm.engine_pid)

    def strike() -> int:
        os.kill(workers[0].pid, signal.SIGSTOP)
        os.kill(engine.pid, sent)
        return engine.pid

    assert streams(server, strike) == server.undisturbed
    assert not still_running([engine, *workers])


def test_an_idle_engine_notices_a_dead_rank(server: FaultServer) -> None:
    pid = server.llm.engine_pid
    os.kill(server.workers()[1].pid, signal.SIGKILL)
    server.runner.run(asyncio.wait_for(until(lambda: server.llm.engine_pid != pid), PATIENCE_S))
    assert streams(server) == server.undisturbed

"""Ranks as actors of a real Ray cluster on this machine: the same tokens, a dead one is replaced, nothing is left."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.executor.network.ray_ranks import address_of_cluster
from tests.helpers.leftovers import marked_processes, still_running

pytestmark = [
    pytest.mark.engine,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed"),
]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "num_gpu_blocks_override": 2000, "cpu_threads": 2}
RAY: dict[str, Any] = {**OPTIONS, "tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
PROMPTS = [[5, 6, 7], [9, 8] * 20, [11]]
PARAMS = [
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2),
    SamplingParams(temperature=0.9, seed=3, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, repetition_penalty=1.3),
]
HEAD = """
import os, sys, time
from cadence.executor.network.ray_ranks import _listen_here_alone
_listen_here_alone()
import ray
ray.init(num_cpus=2, include_dashboard=False, object_store_memory=80 << 20, _temp_dir=sys.argv[1], log_to_driver=False)
print(ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
ray.shutdown()
"""


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """-> its address. It ends with its standard input, and is gone when the tests are over."""
    folder = tempfile.mkdtemp(prefix="ray-")
    head = subprocess.Popen([sys.executable, "-c", HEAD, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert head.stdin is not None and head.stdout is not None
    address = head.stdout.readline().decode().strip()
    started = psutil.Process(head.pid).children(recursive=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ADDRESS", address)
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")  # or Ray looks for it at this machine's other address
        yield address
    head.stdin.close()
    assert head.wait(120) == 0
    assert not still_running(started)
    shutil.rmtree(folder, ignore_errors=True)


def tokens(llm: LLM) -> list[Any]:
    return [list(output.outputs[0].token_ids) for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


@pytest.fixture(scope="module")
def one_rank(directory: Path) -> Iterator[LLM]:
    with LLM(str(directory), **OPTIONS) as llm:
        yield llm


@pytest.mark.timeout(900)  # half a minute of work, of Ray's eight processes, on a core that others use
def test_a_cluster_of_its_own_comes_and_goes(directory: Path, one_rank: LLM) -> None:
    """In a process of its own, whose Ray nobody else uses."""
    script = f"""
import os, psutil
from cadence import LLM, SamplingParams
from tests.distributed.test_ray import RAY, tokens
with LLM({str(directory)!r}, **RAY) as llm:
    print(tokens(llm))
print(len(psutil.Process().children(recursive=True)), flush=True)
"""
    place = tempfile.mkdtemp(prefix="r", dir="/tmp")  # names of Ray's sockets are long, and may not be longer
    environment = os.environ | {"TMPDIR": place}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=880, env=environment)
    assert done.returncode == 0, done.stderr
    found, children = done.stdout.strip().splitlines()[-2:]
    assert eval(found) == tokens(one_rank)
    assert children == "0"
    assert not list(Path(place).glob("cadence-ray-*"))
    shutil.rmtree(place)


def test_the_cluster_that_another_engine_has_for_itself_is_left_to_it(
    cluster: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert address_of_cluster() == cluster  # RAY_ADDRESS
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert address_of_cluster() == ""
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.1:6379")  # as `ray start` does
    assert address_of_cluster() == "10.0.0.1:6379"


def long_params(number: int) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(temperature=number % 2, seed=3, max_tokens=150, ignore_eos=True, output_kind=kind)


class Server:
    """One AsyncLLM on a cluster, and the event loop it lives in."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        args = EngineArgs(model=str(directory), **RAY)
        self.llm: AsyncLLM = self.runner.run(AsyncLLM.start(args, limits=SupervisorLimits(heartbeat_s=5.0)))
        self.num_tokens = 0  # that have come

    async def streams(self, strike: Callable[[], None] | None = None) -> list[list[int]]:
        self.num_tokens = 0
        jobs = [asyncio.ensure_future(self._stream(number)) for number in range(6)]
        if strike is not None:
            while self.num_tokens < 20:
                await asyncio.sleep(0.001)
            pid = self.llm.engine_pid
            strike()
            while self.llm.engine_pid == pid:
                await asyncio.sleep(0.01)
        return [await job for job in jobs]

    async def _stream(self, number: int) -> list[int]:
        found: list[int] = []
        async for output in self.llm.generate([5 + number, 6, 7], long_params(number), f"{number}"):
            found += output.outputs[0].token_ids
            self.num_tokens += len(output.outputs[0].token_ids)
        return found


def actors() -> list[psutil.Process]:
    named = (each for each in marked_processes() if "RankActor" in each.name())
    return sorted(named, key=lambda process: process.pid)


@pytest.mark.wide
@pytest.mark.timeout(900)  # as above: actors have the core of the process that began the cluster
def test_streams_go_on_when_an_actor_is_struck(cluster: str, directory: Path, one_rank: LLM) -> None:
    prompts, params = [[5 + number, 6, 7] for number in range(6)], list(map(long_params, range(6)))
    undisturbed = [list(output.outputs[0].token_ids) for output in one_rank.generate(prompts, params, use_tqdm=False)]
    server = Server(directory)
    assert server.runner.run(server.streams()) == undisturbed
    for number, sent in enumerate((signal.SIGKILL, signal.SIGSTOP)):
        struck = actors()
        assert len(struck) == 2
        assert server.runner.run(server.streams(lambda: os.kill(struck[1].pid, sent))) == undisturbed  # noqa: B023
        assert server.llm.num_restarts == number + 1
        assert not still_running(struck)
    server.runner.run(server.llm.shutdown(drain=False))
    server.runner.close()
    assert not still_running(actors())

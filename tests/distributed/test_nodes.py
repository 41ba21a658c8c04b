"""Two nodes, played by processes of this machine: the same tokens, a node that dies is noticed, and nothing is left."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import random
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import psutil
import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError
from cadence.engine.limits import SupervisorLimits
from cadence.engine.llm_engine import LLMEngine
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.headless_node import free_port, start_node
from tests.helpers.leftovers import family, shared_files, still_running

pytestmark = [pytest.mark.engine, pytest.mark.slow]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "num_gpu_blocks_override": 2000, "cpu_threads": 1}
STREAMS = 4
NOTICED_S = 2.0


def params(number: int) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(temperature=number % 2, seed=3, max_tokens=400, ignore_eos=True, output_kind=kind)


def prompt(number: int) -> list[int]:
    return [5 + number, 6, 7]


@pytest.fixture(scope="module")
def directory(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def secret(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("secret") / "secret"
    file.write_text("a secret of this launch alone")
    return file


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[int]]:
    numbers = range(STREAMS)
    with LLM(str(directory), **OPTIONS) as llm:
        outputs = llm.generate(list(map(prompt, numbers)), list(map(params, numbers)), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs]


class Nodes:
    """An engine on the first node, which is this process's, and a second node."""

    def __init__(self, directory: Path, secret: Path) -> None:
        self.directory, self.secret, self.port = directory, secret, free_port()
        self.runner = asyncio.Runner()
        self.second = self.start_second()
        where = {"nnodes": 2, "master_port": self.port, "node_secret_file": str(secret), "tensor_parallel_size": 2}
        args = EngineArgs(model=str(directory), **OPTIONS, **where)  # type: ignore[arg-type]
        self.llm: AsyncLLM = self.runner.run(AsyncLLM.start(args, limits=SupervisorLimits(heartbeat_s=3.0)))

    def start_second(self) -> subprocess.Popen[str]:
        return start_node(self.directory, self.secret, self.port)

    async def streams(self, strike: Callable[[], Any] | None = None) -> list[list[int]]:
        jobs = [asyncio.ensure_future(self._stream(number)) for number in range(STREAMS)]
        if strike is not None:
            while not (await self.llm.engine_state()).running:
                await asyncio.sleep(0.005)
            pid, began = self.llm.engine_pid, time.monotonic()
            strike()
            while self.llm.engine_pid == pid:
                await asyncio.sleep(0.01)
            self.noticed_after = time.monotonic() - began
        return [await job for job in jobs]

    async def _stream(self, number: int) -> list[int]:
        found: list[int] = []
        async for output in self.llm.generate(prompt(number), params(number), f"{number}"):
            found += output.outputs[0].token_ids
        return found

    def second_rank(self) -> psutil.Process:
        (rank,) = psutil.Process(self.second.pid).children()
        return rank


@pytest.fixture(scope="module")
def nodes(directory: Path, secret: Path) -> Iterator[Nodes]:
    """Told to stop, both leave, and nothing is left of them."""
    shared = shared_files()
    made = Nodes(directory, secret)
    yield made
    everything = [*family(made.llm.engine_pid), *family(made.second.pid)]
    made.runner.run(made.llm.shutdown(drain=False))
    made.runner.close()
    assert made.second.wait(10) == 0
    assert not still_running(everything)
    assert shared_files() == shared


def test_two_nodes_say_what_one_rank_says(nodes: Nodes, expected: list[list[int]]) -> None:
    assert nodes.runner.run(nodes.streams()) == expected


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_go_on_when_a_rank_of_another_node_is_struck(
    nodes: Nodes, expected: list[list[int]], sent: signal.Signals
) -> None:
    """It is the other node that sees one of its processes stopped."""
    rank, restarts = nodes.second_rank(), nodes.llm.num_restarts
    assert nodes.runner.run(nodes.streams(lambda: os.kill(rank.pid, sent))) == expected
    assert nodes.noticed_after < NOTICED_S + 1.0  # and the engine process has ended
    assert nodes.llm.num_restarts == restarts + 1
    assert not still_running([rank])


def test_streams_go_on_when_a_node_dies_and_another_takes_its_place(nodes: Nodes, expected: list[list[int]]) -> None:
    rank = nodes.second_rank()

    def strike() -> None:
        nodes.second.kill()

    async def replaced() -> list[list[int]]:
        job = asyncio.ensure_future(nodes.streams(strike))
        while nodes.second.poll() is None:
            await asyncio.sleep(0.01)
        nodes.second = nodes.start_second()
        return await job

    assert nodes.runner.run(replaced()) == expected
    assert nodes.noticed_after < NOTICED_S + 1.0
    assert not still_running([rank])


def test_stages_on_two_nodes_say_what_one_rank_says(directory: Path, secret: Path, expected: list[list[int]]) -> None:
    """Each hands its stream on over the network, and hears the tokens the same way."""
    port, numbers = free_port(), range(STREAMS)
    node = start_node(directory, secret, port, "--tensor-parallel-size=1", "--pipeline-parallel-size=2")
    where: dict[str, Any] = {"nnodes": 2, "master_port": port, "node_secret_file": str(secret)}
    with LLM(str(directory), pipeline_parallel_size=2, **OPTIONS, **where) as llm:
        outputs = llm.generate(list(map(prompt, numbers)), list(map(params, numbers)), use_tqdm=False)
        assert [list(output.outputs[0].token_ids) for output in outputs] == expected
        assert all(seconds > 0 for seconds in llm.llm_engine._core._executor.busy_seconds())
    assert node.wait(10) == 0


class Network:
    """A namespace with a cable to this one's. Another run on this machine has other names and addresses: names are
    drawn from more than anybody uses, and the file that reserves a net is locked while it is in use."""

    def __init__(self) -> None:
        tag = secrets.token_hex(5)
        self.name, self.cable = f"cadence-{tag}", f"cad{tag}"  # a link's name has at most 15 characters
        number, self._reserved = _free_net()
        self.here, self.there = f"10.213.{number}.1", f"10.213.{number}.2"
        _ip("netns", "add", self.name)
        _ip("link", "add", f"{self.cable}a", "type", "veth", "peer", "name", f"{self.cable}b", "netns", self.name)
        _ip("addr", "add", f"{self.here}/24", "dev", f"{self.cable}a")
        _ip("link", "set", f"{self.cable}a", "up")
        _ip("-n", self.name, "addr", "add", f"{self.there}/24", "dev", f"{self.cable}b")
        for device in (f"{self.cable}b", "lo"):
            _ip("-n", self.name, "link", "set", device, "up")

    def cut(self) -> None:
        _ip("link", "set", f"{self.cable}a", "down")

    def remove(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", f"{self.cable}a")
        _ip("netns", "del", self.name)
        self._reserved.close()


def _free_net() -> tuple[int, IO[str]]:
    """-> a number that no other run has, and the file that keeps it so until it is closed"""
    for number in random.sample(range(1, 255), 254):
        file = Path(tempfile.gettempdir(), f"cadence-net-{number}").open("w")  # noqa: SIM115 - whoever asked closes it
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return number, file
        except BlockingIOError:
            file.close()
    raise OSError("all nets are in use")


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None or os.geteuid():
        pytest.skip("network namespaces need root and the command ip")
    try:
        made = Network()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace can be made here: {error.stderr.decode().strip()}")
    try:
        yield made
    finally:
        made.remove()


def test_a_cable_that_is_cut_is_noticed(
    network: Network, directory: Path, secret: Path, expected: list[list[int]]
) -> None:
    """Two network namespaces: nothing is closed when one cannot be reached any more."""
    prefix, port = ["ip", "netns", "exec", network.name], free_port()
    node = start_node(directory, secret, port, master=network.here, prefix=prefix)
    where = {"master_addr": network.here, "master_port": port, "nnodes": 2, "node_secret_file": str(secret)}
    args = EngineArgs(str(directory), tensor_parallel_size=2, **OPTIONS, **where)  # type: ignore[arg-type]
    engine = LLMEngine.from_engine_args(args)
    found: dict[str, list[int]] = {f"{number}": [] for number in range(STREAMS)}
    for number in range(STREAMS):
        engine.add_request(f"{number}", prompt(number), params(number))
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id] += output.outputs[0].token_ids
    assert list(found.values()) == expected
    engine.add_request("x", prompt(0), params(0))
    engine.step()
    network.cut()
    began = time.monotonic()
    with pytest.raises(EngineDeadError, match=r"the worker of rank 1 .* is gone|rank 0"):
        while True:
            engine.step()
            engine._core.check()
    noticed_after = time.monotonic() - began
    engine.shutdown()
    node.terminate()
    assert node.wait(10) == 0
    assert noticed_after < NOTICED_S

"""Two nodes, played by processes of this machine: the same tokens, a node that dies is noticed, and nothing is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.messages import LACKS_RANKS
from cadence.core.errors import EngineDeadError
from cadence.core.failure import FailureCode
from cadence.core.outputs import CompletionOutput
from cadence.engine.llm_engine import LLMEngine
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.cut_networks import Network, network
from tests.helpers.headless_node import free_port, ranks_of, running, start_node
from tests.helpers.leftovers import still_running
from tests.helpers.processes import family_of

__all__ = ["network"]

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 512, "num_gpu_blocks_override": 2000, "cpu_threads": 1}
STREAMS, TOKENS = 4, 200
ENDS_S = 120.0  # for a node that was told to stop
LIMITS = SupervisorLimits(heartbeat_s=5.0, rejoin_s=300.0)


def params(number: int) -> SamplingParams:
    kind = RequestOutputKind.DELTA
    return SamplingParams(temperature=number % 2, seed=3, max_tokens=TOKENS, ignore_eos=True, output_kind=kind)


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

    def __init__(self, directory: Path, secret: Path, limits: SupervisorLimits = LIMITS) -> None:
        self.directory, self.secret, self.port = directory, secret, free_port()
        self.runner = asyncio.Runner()
        self.second = self.start_second()
        where = {"nnodes": 2, "master_port": self.port, "node_secret_file": str(secret), "tensor_parallel_size": 2}
        args = EngineArgs(model=str(directory), **OPTIONS, **where)  # type: ignore[arg-type]
        self.llm: AsyncLLM = self.runner.run(AsyncLLM.start(args, limits=limits))
        self.num_tokens = 0  # that have come
        self.ends: dict[int, CompletionOutput] = {}  # what came last, by stream

    def start_second(self) -> subprocess.Popen[str]:
        return start_node(self.directory, self.secret, self.port)

    async def streams(self, strike: Callable[[], Any] | None = None) -> list[list[int]]:
        self.num_tokens = 0
        jobs = [asyncio.ensure_future(self._stream(number)) for number in range(STREAMS)]
        if strike is not None:
            while self.num_tokens < 3 * STREAMS:
                await asyncio.sleep(0.001)
            pid = self.llm.engine_pid
            strike()
            while self.llm.engine_pid == pid:
                await asyncio.sleep(0.01)
        return [await job for job in jobs]

    async def _stream(self, number: int) -> list[int]:
        found: list[int] = []
        async for output in self.llm.generate(prompt(number), params(number), f"{number}"):
            found += output.outputs[0].token_ids
            self.num_tokens += len(output.outputs[0].token_ids)
            self.ends[number] = output.outputs[0]
        return found

    def second_rank(self) -> psutil.Process:
        (rank,) = ranks_of(self.second)
        return rank


@pytest.fixture(scope="module")
def nodes(directory: Path, secret: Path) -> Iterator[Nodes]:
    """Told to stop, both leave, and nothing is left of them."""
    made = Nodes(directory, secret)
    yield made
    everything = [*family_of(made.llm.engine_pid), *family_of(made.second.pid)]
    made.runner.run(made.llm.shutdown(drain=False))
    made.runner.close()
    assert made.second.wait(ENDS_S) == 0
    assert not still_running(everything)


def test_two_nodes_say_what_one_rank_says(nodes: Nodes, expected: list[list[int]]) -> None:
    assert nodes.runner.run(nodes.streams()) == expected


@pytest.mark.wide
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_streams_go_on_when_a_rank_of_another_node_is_struck(
    nodes: Nodes, expected: list[list[int]], sent: signal.Signals
) -> None:
    """It is the other node that sees one of its processes stopped."""
    rank, restarts = nodes.second_rank(), nodes.llm.num_restarts
    assert nodes.runner.run(nodes.streams(lambda: os.kill(rank.pid, sent))) == expected
    assert nodes.llm.num_restarts == restarts + 1
    assert not still_running([rank])


@pytest.mark.wide
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
    assert not still_running([rank])


@pytest.mark.wide
def test_streams_fail_when_a_node_is_gone_for_good(directory: Path, secret: Path) -> None:
    nodes = Nodes(directory, secret, replace(LIMITS, rejoin_s=0.2))

    async def check() -> None:
        jobs = asyncio.ensure_future(nodes.streams(nodes.second.kill))
        while nodes.second.poll() is None:
            await asyncio.sleep(0.01)
        assert {len(tokens) for tokens in await jobs} < set(range(TOKENS))
        assert {output.failure for output in nodes.ends.values()} == {FailureCode.ENGINE_DOWN}
        assert all(LACKS_RANKS in str(output.stop_reason) for output in nodes.ends.values())

    try:
        nodes.runner.run(check())
    finally:
        nodes.runner.run(nodes.llm.shutdown(drain=False))
        nodes.runner.close()


@pytest.mark.wide
def test_stages_on_two_nodes_say_what_one_rank_says(directory: Path, secret: Path, expected: list[list[int]]) -> None:
    """Each hands its stream on over the network, and hears the tokens the same way."""
    port, numbers = free_port(), range(STREAMS)
    flags = ("--tensor-parallel-size=1", "--pipeline-parallel-size=2")
    where: dict[str, Any] = {"nnodes": 2, "master_port": port, "node_secret_file": str(secret)}
    with running(start_node(directory, secret, port, *flags)) as node:
        with LLM(str(directory), pipeline_parallel_size=2, **OPTIONS, **where) as llm:
            outputs = llm.generate(list(map(prompt, numbers)), list(map(params, numbers)), use_tqdm=False)
            assert [list(output.outputs[0].token_ids) for output in outputs] == expected
            assert all(seconds > 0 for seconds in llm.llm_engine._core._executor.busy_seconds())
        assert node.wait(ENDS_S) == 0


@pytest.mark.wide
def test_a_cable_that_is_cut_is_noticed(
    network: Network, directory: Path, secret: Path, expected: list[list[int]]
) -> None:
    """Two network namespaces: nothing is closed when one cannot be reached any more."""
    prefix, port = ["ip", "netns", "exec", network.name], free_port()
    where = {"master_addr": network.here, "master_port": port, "nnodes": 2, "node_secret_file": str(secret)}
    args = EngineArgs(str(directory), tensor_parallel_size=2, **OPTIONS, **where)  # type: ignore[arg-type]
    with (
        running(start_node(directory, secret, port, master=network.here, prefix=prefix)) as node,
        LLMEngine.from_engine_args(args) as engine,
    ):
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
        with pytest.raises(EngineDeadError, match=r"the worker of rank 1 .* is gone|rank 0"):
            while True:
                engine.step()
                engine._core.check()
        engine.shutdown()
        node.terminate()
        assert node.wait(ENDS_S) == 0

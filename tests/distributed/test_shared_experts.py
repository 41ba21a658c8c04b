"""Engines that share experts: they say what one engine says to the bit, wait together, and end and begin together."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import EngineGivenUpError
from cadence.core.outputs import RequestOutput
from cadence.engine.metrics.metric import Counter
from cadence.engine.supervise.engine_group import EngineGroup
from cadence.engine.supervise.journal import Journal
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervision import probe
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.executor.worker.group_memory import GroupSeat
from cadence.executor.worker.rounds import Rounds
from tests.distributed.test_api_processes import FLAGS, Cluster
from tests.helpers.warm_start import children
from tests.helpers.wide import mostly_wide, mostly_wide_rows
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 200, "num_gpu_blocks_override": 400}
SHARED = {"enable_expert_parallel": True}
STREAMS, TOKENS = 16, 180
NGRAM = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}}
BITS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int4": {"quantization": "int4"},
    "bfloat16": {"dtype": "bfloat16"},
    "drafts": NGRAM,
    "eager": {"enforce_eager": True},
}


def mixed(count: int) -> list[tuple[list[int], SamplingParams]]:
    """Short and long, greedy and seeded, with and without what else a request may ask for."""
    draw = random.Random(11)
    found = []
    for number in range(count):
        prompt = [draw.randrange(3, 300) for _ in range(draw.choice((1, 3, 17, 60, 110)))]
        some: dict[str, Any] = {"max_tokens": draw.choice((1, 4, 20, 70)), "ignore_eos": True}
        if number % 2:
            some |= {"temperature": 0.9, "seed": number, "top_p": 0.9}
        else:
            some |= {"temperature": 0}
        some |= ({"logprobs": 2}, {"repetition_penalty": 1.3}, {"n": 2} if number % 2 else {}, {})[number % 4]
        found.append((prompt, SamplingParams(**some)))
    return found


def told(outputs: list[RequestOutput]) -> list[Any]:
    choices = [choice for output in outputs for choice in output.outputs]
    return [(choice.token_ids, choice.finish_reason, choice.logprobs) for choice in choices]


def tokens_by_engine(llm: LLM) -> list[float]:
    counters = [one for one in llm.get_metrics() if isinstance(one, Counter)]
    return [one.value for one in counters if one.name == "vllm:generation_tokens"]


MODELS = [("mixtral", name) for name in BITS] + [("qwen3_moe_mixed", "float32")]


@pytest.mark.parametrize(("family", "bits"), mostly_wide_rows(MODELS, [("mixtral", "int4")]))
def test_two_engines_say_what_one_says(family: str, bits: str, tiny_model: Callable[[str], Path]) -> None:
    """One alone at first, while the other engine has nothing to do; then many, of which few last long; then some that
    go where their beginning is known."""
    directory, options = str(tiny_model(family)), OPTIONS | BITS[bits]
    requests, begin = mixed(40), [7] * 96
    alone = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    found = []
    for size in (1, 2):
        with LLM(directory, **options, **SHARED, data_parallel_size=size) as llm:
            texts = told(llm.generate([[5, 6, 7]], alone, use_tqdm=False))
            assert sorted(tokens_by_engine(llm)) == [*[0.0] * (size - 1), 40.0]
            texts += told(llm.generate([one for one, _ in requests], [two for _, two in requests], use_tqdm=False))
            for number in range(3):
                texts += told(llm.generate([[*begin, number]], alone, use_tqdm=False))
            assert all(tokens_by_engine(llm))
            found.append(texts)
    assert found[0] == found[1]


@pytest.mark.wide
def test_three_engines_of_a_model_with_few_experts(tiny_model: Callable[[str], Path]) -> None:
    """Four experts: two, one and one."""
    directory, requests = str(tiny_model("mixtral")), mixed(12)
    found = []
    for size in (1, 3):
        with LLM(directory, **OPTIONS, **SHARED, data_parallel_size=size) as llm:
            found.append(told(llm.generate([one for one, _ in requests], [two for _, two in requests], use_tqdm=False)))
    assert found[0] == found[1]


def test_what_engines_that_share_experts_cannot_do_is_said(tiny_model: Callable[[str], Path]) -> None:
    directory, before = str(tiny_model("mixtral")), children()
    for options, why in (
        ({"num_scheduler_steps": 4}, "one forward at a time"),
        ({"tensor_parallel_size": 2}, "one rank each"),
        ({"pipeline_parallel_size": 2}, "one stage each|one rank each"),
        ({"kernels": "reference"}, "C kernels"),
        ({"dtype": "float16"}, "dtype=float16"),
    ):
        with pytest.raises(Exception, match=why):
            LLM(directory, **OPTIONS | options, **SHARED, data_parallel_size=2)
    with pytest.raises(Exception, match="4 experts are fewer than the 5 ranks"):
        LLM(directory, **OPTIONS, **SHARED, data_parallel_size=5)
    assert set(children()) <= set(before)


class SharedFront:
    """Two engines that share experts, and what they say when nobody disturbs them."""

    def __init__(self, directory: Path) -> None:
        self.runner = asyncio.Runner()
        args = EngineArgs(model=str(directory), data_parallel_size=2, **OPTIONS, **SHARED)
        limits = SupervisorLimits(tick_s=0.05, first_backoff_s=0.01)
        self.llm: AsyncLLM = self.runner.run(AsyncLLM.start(args, limits=limits))
        self.num_tokens = 0  # that have come
        self.undisturbed = self.runner.run(self.streams())

    async def streams(self, strike: Callable[[], None] = lambda: None) -> list[list[int]]:
        """The tokens of all; `strike` strikes while they run."""
        self.num_tokens = 0
        jobs = [asyncio.ensure_future(self.stream([5 + number, 6, 7])) for number in range(STREAMS)]
        while self.num_tokens < STREAMS * 20:
            await asyncio.sleep(0.001)
        assert self.num_tokens < STREAMS * TOKENS / 2
        strike()
        return list(await asyncio.gather(*jobs))

    async def stream(self, prompt: list[int]) -> list[int]:
        params = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA, detokenize=False
        )
        tokens: list[int] = []
        async for output in self.llm.generate(prompt, params, str(prompt)):
            tokens += output.outputs[0].token_ids
            self.num_tokens += len(output.outputs[0].token_ids)
        assert output.outputs[0].finish_reason == "length", output.outputs[0].stop_reason
        return tokens


@pytest.fixture(scope="module")
def front(tiny_model: Callable[[str], Path]) -> Iterator[SharedFront]:
    made = SharedFront(tiny_model("mixtral"))
    yield made
    pids = made.llm.engine_pids
    made.runner.run(made.llm.shutdown(drain=False))
    made.runner.close()
    assert not any(map(psutil.pid_exists, pids))


def test_streams_are_those_of_one_engine(front: SharedFront, tiny_model: Callable[[str], Path]) -> None:
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    prompts = [[5 + number, 6, 7] for number in range(STREAMS)]
    with LLM(str(tiny_model("mixtral")), **OPTIONS) as llm:
        alone = llm.generate(prompts, params, use_tqdm=False)
    assert [list(output.outputs[0].token_ids) for output in alone] == front.undisturbed


def test_engines_without_work_wait(front: SharedFront) -> None:
    """Once they have done what there was: a fifth of a core is more than heartbeats take."""
    processes = [psutil.Process(pid) for pid in front.llm.engine_pids]

    def used() -> float:
        before = [sum(process.cpu_times()[:2]) for process in processes]
        time.sleep(1.5)
        return max(sum(p.cpu_times()[:2]) - b for p, b in zip(processes, before, strict=True))

    ends = time.monotonic() + 120
    while used() >= 0.3:
        assert time.monotonic() < ends


@pytest.mark.parametrize("struck", mostly_wide([0, 1], [1]))
def test_all_engines_begin_anew_when_one_is_killed(front: SharedFront, struck: int) -> None:
    pids, restarts = front.llm.engine_pids, front.llm.num_restarts
    assert front.runner.run(front.streams(lambda: os.kill(pids[struck], signal.SIGKILL))) == front.undisturbed
    assert not set(pids) & set(front.llm.engine_pids) and not any(map(psutil.pid_exists, pids))
    assert front.llm.num_restarts == restarts + 2
    assert front.runner.run(front.streams()) == front.undisturbed


def test_an_engine_that_is_killed_while_all_are_idle(front: SharedFront) -> None:
    pids = front.llm.engine_pids
    os.kill(pids[0], signal.SIGKILL)
    assert front.runner.run(front.streams()) == front.undisturbed
    assert not set(pids) & set(front.llm.engine_pids)


class SharedCluster(Cluster):
    """Two API processes in front of two engines that share experts."""

    def __init__(self, model: Path) -> None:
        flags = ("--dtype", "float32", "--num-gpu-blocks-override", "2000", "--enable-expert-parallel")
        ServerProcess.__init__(self, model, *FLAGS, *flags)

    @property
    def engines(self) -> list[psutil.Process]:
        return self.children("core_process")

    def answers(self, strike: Callable[[], None] = lambda: None) -> list[str]:
        """Of requests over connections of their own, which are dealt out in turn; `strike` strikes while they run."""

        def ask(number: int) -> str:
            body = {"prompt": [5 + number, 6, 7], "max_tokens": 150, "ignore_eos": True, "temperature": 0}
            with self.client(timeout=200.0) as client:
                return str(client.post("/v1/completions", json=body).json()["choices"][0]["text"])

        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(ask, number) for number in range(8)]
            with self.client() as client:
                while client.get("/load").json()["server_load"] < 8 and not jobs[0].done():
                    time.sleep(0.01)
            strike()
            return [job.result() for job in jobs]


@pytest.mark.wide
def test_several_api_processes_in_front_of_engines_that_share_experts(tiny_model: Callable[[str], Path]) -> None:
    """Requests in the other engine are not blamed when one is killed, by either process."""
    with SharedCluster(tiny_model("mixtral")) as cluster:
        assert isinstance(cluster, SharedCluster) and len(cluster.api) == 2
        undisturbed = cluster.answers()
        for _ in range(2):
            before = {one.pid for one in cluster.engines}
            assert len(before) == 2 and cluster.answers(cluster.engines[0].kill) == undisturbed
            assert not before & {one.pid for one in cluster.engines}
        with cluster.client() as client:
            counted = [line for line in client.get("/metrics").text.splitlines() if "quarantined_total{" in line]
        assert counted and sum(float(line.split()[-1]) for line in counted) == 0


def test_a_generation_ends_as_a_whole() -> None:
    group = EngineGroup(2)
    first = [group.seat(rank) for rank in range(2)]
    assert first[0].memory == first[1].memory and first[0].rank == 0
    kept = [os.dup(one.memory) for one in first]
    group.left(0)
    assert os.pread(kept[0], 1, 0) == b"\1", "the other is told"
    second = group.seat(0)
    assert os.pread(second.memory, 1, 0) == b"\0"
    group.left(1)  # of the first generation: it has no seat in the second
    assert os.pread(second.memory, 1, 0) == b"\0"
    assert group.seat(1).memory == second.memory
    group.seat(1)  # it was never seen to leave
    group.close("enough")
    with pytest.raises(EngineGivenUpError, match="enough"):
        group.seat(0)
    for descriptor in kept:
        os.close(descriptor)


def test_rounds_are_counted_alike() -> None:
    group = EngineGroup(2)
    seat = group.seat(0)
    copies = [GroupSeat(rank, os.dup(seat.memory), seat.bells) for rank in range(2)]
    one, other = (Rounds(copy) for copy in copies)
    assert not one.is_called and not other.is_called
    one.begin()
    assert other.is_called and os.eventfd_read(other.bell) == 1
    other.begin()  # that has work as well: it is the same round
    one.end()
    other.end()
    assert not one.is_called and not other.is_called
    other.clear_bell()  # one that rang for a round that is over calls no engine
    assert not other.is_called
    group.close("the end")


def test_requests_are_not_blamed_for_the_end_of_another_engine() -> None:
    journal = Journal(isolation_s=1.0)
    entry = probe(0.0)
    journal.add(entry)
    for _ in range(20):
        assert journal.take_due(0.0, 8) == [entry]
        assert journal.engine_died(blameless=True) == []
    assert not entry.deaths and journal.num_quarantined == 0
    assert journal.num_failed == 0

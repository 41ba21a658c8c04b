"""Several engines behind one front: they say what one says, find prefixes again, and go on when one of them dies."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.contract.request import EngineRequest, StopRule
from cadence.core.errors import ConfigError, EngineDeadError, InvalidRequestError
from cadence.core.sampling_params import BeamSearchParams
from cadence.engine.fleet.router import Router
from cadence.engine.metrics.metric import Counter
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.processes import children_of, connections_of, family_of
from tests.helpers.warm_start import children
from tests.helpers.wide import KILLED_AND_STOPPED, mostly_wide
from tests.server.engines import RAISES, engine_command, toy

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FAMILIES = ("llama", "qwen3", "gemma3")
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3)
SEEDED = SamplingParams(temperature=0.9, seed=7, n=2, max_tokens=24, ignore_eos=True, repetition_penalty=1.2)
QUICK = SupervisorLimits(heartbeat_s=5.0, tick_s=0.05, first_backoff_s=0.01)
STREAMS, TOKENS = 12, 300


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ("gemma3",)))
def test_two_engines_say_what_one_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory, draw = str(tiny_model(family)), random.Random(3)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90, 5, 33, 64)]
    found = []
    for size in (1, 2):
        with LLM(directory, **OPTIONS, data_parallel_size=size) as llm:
            outputs = [llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SEEDED)]
            beams = llm.beam_search(prompts[:2], BeamSearchParams(beam_width=2, max_tokens=6, ignore_eos=True))
            texts = [
                (choice.token_ids, choice.text, choice.finish_reason, choice.logprobs)
                for each in outputs
                for output in each
                for choice in output.outputs
            ]
            found.append((texts, [[beam.tokens for beam in output.sequences] for output in beams]))
            counters = [one for one in llm.get_metrics() if isinstance(one, Counter)]
            tokens = {one.labels["engine"]: one.value for one in counters if one.name == "vllm:generation_tokens"}
            assert len(tokens) == size and all(tokens.values()), "an engine had nothing to do"
            llm.generate(prompts, GREEDY, use_tqdm=False, data_parallel_rank=size - 1)
            counters = [one for one in llm.get_metrics() if isinstance(one, Counter)]
            more = {one.labels["engine"]: one.value for one in counters if one.name == "vllm:generation_tokens"}
            assert {name: more[name] - tokens[name] for name in more if more[name] != tokens[name]} == {
                str(size - 1): len(prompts) * GREEDY.max_tokens
            }
            with pytest.raises(InvalidRequestError, match="data_parallel_rank must be"):
                llm.llm_engine.add_request("r", prompts[0], GREEDY, data_parallel_rank=size)
            assert llm.reset_prefix_cache()
            llm.enqueue(prompts, GREEDY)
            llm.llm_engine.abort_request([str(number) for number in range(10_000)])
            assert {output.outputs[0].finish_reason for output in llm.wait_for_completion()} == {"abort"}
    assert found[0] == found[1]


def test_what_several_engines_cannot_do_is_said(tiny_model: Callable[[str], Path]) -> None:
    directory, before = str(tiny_model("llama")), children()
    with pytest.raises(ConfigError, match="data_parallel_size=0"):
        LLM(directory, data_parallel_size=0)
    with pytest.raises(ConfigError, match="logits_processors"):
        LLM(directory, data_parallel_size=2, logits_processors=[lambda ids, logits: logits])
    with pytest.raises(ConfigError, match="profiler_config"):
        LLM(directory, data_parallel_size=2, profiler_config={"torch_profiler_dir": "/tmp"})
    args = EngineArgs(model=directory, data_parallel_size=2)
    with pytest.raises(EngineDeadError, match="status 7"):
        asyncio.run(AsyncLLM.start(args, engine_command=engine_command("silent_death"), limits=QUICK))
    assert set(children()) <= set(before)


def shared_prefixes(count: int, turns: int) -> list[EngineRequest]:
    """Conversations, all at the same time: each turn has the prompt of the one before and some more."""
    draw = random.Random(5)
    prompts = [draw.choices(range(5, 200), k=64) for _ in range(count)]
    requests = []
    for turn in range(turns):
        for number in draw.sample(range(count), count):
            prompts[number] = prompts[number] + draw.choices(range(5, 200), k=20)
            stop = StopRule(frozenset(), frozenset(), 0, 2)
            sampling = SamplingParams(temperature=0, max_tokens=2)
            requests.append(EngineRequest(f"{number}-{turn}", prompts[number], sampling, stop, 0, 0.0))
    return requests


def prefix_hits(model: Path, route: Callable[[EngineRequest], int], ended: Callable[[str], None]) -> int:
    """Of two real schedulers, eight requests at a time."""
    cores = [toy(EngineArgs(model=str(model), max_model_len=512))[0] for _ in range(2)]
    requests = shared_prefixes(count=32, turns=3)
    for start in range(0, len(requests), 8):
        for request in requests[start : start + 8]:
            cores[route(request)].add(request)
        for core in cores:
            while core.has_unfinished():
                for update in core.step():
                    if update.finish_reason is not None:
                        ended(update.request_id)
    return sum(core.stats().prefix_hits for core in cores)


def test_routing_finds_more_prefixes_than_round_robin(tiny_model: Callable[[str], Path]) -> None:
    model, turn = tiny_model("llama"), iter(range(1000))
    router = Router(2, 16, 4000)
    router.up(0)
    router.up(1)
    aware = prefix_hits(model, router.route, router.ended)
    assert aware >= 1.5 * prefix_hits(model, lambda request: next(turn) % 2, lambda name: None)


class Front:
    """An AsyncLLM over two toy engines, and the event loop it lives in."""

    def __init__(self, directory: Path) -> None:
        self.listening_before = set(listening(os.getpid()))
        self.runner = asyncio.Runner()
        args = EngineArgs(model=str(directory), max_model_len=512, data_parallel_size=2)
        start = AsyncLLM.start(args, engine_command=engine_command("toy"), limits=QUICK)
        self.llm: AsyncLLM = self.runner.run(start)
        self.begun: set[int] = set()  # first tokens of prompts whose streams have begun
        self.undisturbed = self.runner.run(self.streams())

    async def streams(self, strike: Callable[[], None] = lambda: None) -> list[list[int]]:
        """The tokens of all; `strike` strikes while they run."""
        jobs = await self._all_begun()
        while any(job.done() for job in jobs):  # this process was held up meanwhile
            await asyncio.gather(*jobs)
            jobs = await self._all_begun()
        strike()
        return list(await asyncio.gather(*jobs))

    async def _all_begun(self) -> list[asyncio.Future[list[int]]]:
        self.begun.clear()
        jobs = [asyncio.ensure_future(self.stream([5 + number, 6, 7])) for number in range(STREAMS)]
        while len(self.begun) < STREAMS:
            await asyncio.sleep(0.005)
        return jobs

    async def stream(self, prompt: list[int]) -> list[int]:
        params = SamplingParams(
            temperature=0, max_tokens=TOKENS, ignore_eos=True, output_kind=RequestOutputKind.DELTA, detokenize=False
        )
        tokens: list[int] = []
        async for output in self.llm.generate(prompt, params, str(prompt)):
            self.begun.add(prompt[0])
            tokens += output.outputs[0].token_ids
        assert output.outputs[0].finish_reason == "length", output.outputs[0].stop_reason
        return tokens

    async def until_both_are_ready(self) -> None:
        while not all(supervisor.is_ready for supervisor in self.llm._supervisor._supervisors):  # type: ignore[attr-defined]
            await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def front(tiny_model: Callable[[str], Path]) -> Iterator[Front]:
    made = Front(tiny_model("llama"))
    yield made
    pids = made.llm.engine_pids
    made.runner.run(made.llm.shutdown(drain=False))
    made.runner.close()
    assert not any(map(psutil.pid_exists, pids))


def listening(pid: int) -> list[Any]:
    """Sockets of a process and its children that wait for connections from elsewhere."""
    return [one for one in connections_of(family_of(pid)) if one.status == psutil.CONN_LISTEN]


def test_both_engines_share_the_load(front: Front) -> None:
    counters = [one for one in front.llm.get_metrics() if isinstance(one, Counter)]
    tokens = [one.value for one in counters if one.name == "vllm:generation_tokens"]
    assert len(tokens) == 2 and min(tokens) >= STREAMS * TOKENS // 3
    assert set(listening(os.getpid())) <= front.listening_before


def test_a_rank_says_which_engine_computes(front: Front) -> None:
    """Of one completion, of several, and of every beam of a search."""

    def tokens_by_engine() -> list[float]:
        counters = [one for one in front.llm.get_metrics() if isinstance(one, Counter)]
        return [one.value for one in counters if one.name == "vllm:generation_tokens"]

    async def check(rank: int) -> None:
        prompt: Any = {"prompt_token_ids": [9, 6, 7], "data_parallel_rank": rank}
        params = SamplingParams(n=2, max_tokens=4, ignore_eos=True, output_kind=RequestOutputKind.FINAL_ONLY)
        before = tokens_by_engine()
        for number in range(4):
            assert [output async for output in front.llm.generate(prompt, params, f"pinned-{number}")][-1].finished
        middle = tokens_by_engine()
        assert middle[rank] - before[rank] == 4 * 2 * 4 and middle[1 - rank] == before[1 - rank]
        beams = BeamSearchParams(beam_width=3, max_tokens=3, ignore_eos=True)
        assert [output async for output in front.llm.beam_search(prompt, beams, "beams")]
        after = tokens_by_engine()
        assert after[rank] > middle[rank] and after[1 - rank] == middle[1 - rank]

    for rank in (0, 1):
        front.runner.run(check(rank))
    with pytest.raises(InvalidRequestError, match="data_parallel_rank must be an integer from 0 to 1; got 2"):
        front.runner.run(check(2))


@pytest.mark.parametrize("sent", KILLED_AND_STOPPED)
def test_streams_go_on_elsewhere_when_an_engine_is_struck(front: Front, sent: signal.Signals) -> None:
    """The other engine takes over at once what was there, and its own streams do not notice."""
    struck, other = front.llm.engine_pids
    restarts = front.llm.num_restarts

    assert front.runner.run(front.streams(lambda: os.kill(struck, sent))) == front.undisturbed
    front.runner.run(front.until_both_are_ready())
    assert front.llm.num_restarts == restarts + 1
    assert front.llm.engine_pids[1] == other and front.llm.engine_pids[0] != struck
    assert not psutil.pid_exists(struck)
    assert front.runner.run(front.streams()) == front.undisturbed


def test_a_request_that_kills_engines_fails_alone(front: Front) -> None:
    async def check() -> None:
        jobs = [asyncio.ensure_future(front.stream([5 + number, 6, 7])) for number in range(STREAMS)]
        await asyncio.sleep(0.1)
        with pytest.raises(AssertionError, match="times while this request was in it"):
            await front.stream([RAISES, 6, 7])
        assert list(await asyncio.gather(*jobs)) == front.undisturbed

    front.runner.run(check())
    front.runner.run(front.until_both_are_ready())


def test_a_request_for_both_engines_goes_to_one_and_back_again(front: Front) -> None:
    """One that is dropped frees its place, wherever it was."""

    async def check() -> None:
        front.begun.clear()
        job = asyncio.ensure_future(front.stream([9, 9, 9]))
        while 9 not in front.begun:
            await asyncio.sleep(0.001)
        with pytest.raises(InvalidRequestError, match="already running"):
            await front.stream([9, 9, 9])
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        while any(state.running for state in await front.llm.engine_states()):
            await asyncio.sleep(0.01)
        assert await front.llm.reset_prefix_cache()

    front.runner.run(check())


def test_requests_that_are_dropped_are_aborted_in_both_engines(front: Front) -> None:
    """No engine takes the steps that their ends are away. Where this process is held up they may have ended before."""

    async def num_steps() -> list[int]:
        """That each engine took for requests that were dropped when they had begun."""
        before = [state.num_steps for state in await front.llm.engine_states()]
        front.begun.clear()
        prompts = [[100 + number, 6, 7] for number in range(4)]
        jobs = [asyncio.ensure_future(front.stream(prompt)) for prompt in prompts]
        while len(front.begun) < len(prompts):
            await asyncio.sleep(0.001)
        for job in jobs:
            job.cancel()
        await asyncio.gather(*jobs, return_exceptions=True)
        while any(state.running for state in await front.llm.engine_states()):
            await asyncio.sleep(0.01)
        after = [state.num_steps for state in await front.llm.engine_states()]
        return [now - then for now, then in zip(after, before, strict=True)]

    assert any(max(front.runner.run(num_steps())) < TOKENS for _ in range(10))


RANKS = ("tensor_parallel_size", "pipeline_parallel_size")


@pytest.mark.wide
@pytest.mark.parametrize("ranks", RANKS)
def test_two_engines_of_two_ranks_say_what_one_process_says(ranks: str, tiny_model: Callable[[str], Path]) -> None:
    directory, draw = str(tiny_model("llama")), random.Random(9)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90, 5, 33, 64)]
    found = []
    for sizes in ({}, {"data_parallel_size": 2, ranks: 2}):
        with LLM(directory, **OPTIONS, **sizes, cpu_threads=2) as llm:
            outputs = [llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SEEDED)]
            found.append(
                [
                    (choice.token_ids, choice.text, choice.finish_reason)
                    for each in outputs
                    for output in each
                    for choice in output.outputs
                ]
            )
            counters = [one for one in llm.get_metrics() if isinstance(one, Counter)]
            tokens = [one.value for one in counters if one.name == "vllm:generation_tokens"]
            assert len(tokens) == sizes.get("data_parallel_size", 1) and all(tokens), "an engine had nothing to do"
            workers = children_of(os.getpid(), "worker_process", recursive=True)
            assert len(workers) == (4 if sizes else 0)
    assert found[0] == found[1]

"""A model with states in an engine of its own process: the same answers, and they survive its death."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.killed_engine import MOMENTS, killed
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FAMILIES = mostly_wide(("bamba", "mamba2"), ("bamba",))  # beside attention, and alone
DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 1, "adaptive": False}
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "num_gpu_blocks_override": 200,
    "max_model_len": 400,
    "max_num_seqs": 8,
    "block_size": 16,
    "max_num_batched_tokens": 32,  # a prompt is many steps long
    "speculative_config": DRAFTS,  # states lag behind what is kept
}
SHARED, LONG, SEVERAL = 100, 3, 2  # tokens of a beginning; number of the longest prompt; completions of the first one


def prompts() -> list[list[int]]:
    """Two of them begin as the first does, and may go on from its snapshot."""
    rng = random.Random(8)
    made = [[rng.randrange(5, VOCAB) for _ in range(length)] for length in (SHARED, 7, 33, 250)]
    return [[*made[0], 9], [*made[0], *made[1]], made[2], made[3], [*made[0], *made[2]]]


PROMPTS = prompts()


def params(number: int) -> SamplingParams:
    given = {"temperature": 0.7, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    return SamplingParams(**given, n=SEVERAL if number == 0 else 1, output_kind=RequestOutputKind.FINAL_ONLY)


def tokens_of(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


@pytest.fixture(scope="module", params=FAMILIES)
def directory(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model(request.param)


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[list[int]]]:
    """By an engine in this process, each by itself."""
    llm = LLM(model=str(directory), **OPTIONS | {"enable_prefix_caching": False, "speculative_config": None})
    return [tokens_of(llm.generate(prompt, params(number), use_tqdm=False)[0]) for number, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def llm(directory: Path, runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    llm = runner.run(AsyncLLM.start(EngineArgs.from_options(model=str(directory), **OPTIONS)))
    yield llm
    runner.run(llm.shutdown(drain=False))


async def answer(llm: AsyncLLM, number: int, name: str) -> list[list[int]]:
    return tokens_of([output async for output in llm.generate(PROMPTS[number], params(number), f"{name}-{number}")][-1])


async def answers(llm: AsyncLLM, name: str) -> list[list[list[int]]]:
    return list(await asyncio.gather(*(answer(llm, number, name) for number in range(len(PROMPTS)))))


def test_answers_are_those_of_an_engine_in_this_process(llm: AsyncLLM, runner: asyncio.Runner, expected: Any) -> None:
    for name in ("first", "from snapshots"):
        assert runner.run(answers(llm, name)) == expected


@pytest.mark.parametrize("moment", MOMENTS)
def test_requests_go_on_when_the_engine_is_killed(
    llm: AsyncLLM, runner: asyncio.Runner, expected: Any, moment: str
) -> None:
    """States and snapshots are gone with it: prompts, and what had come after them, are computed again."""
    restarts = llm.num_restarts
    assert runner.run(killed(llm, lambda name: answers(llm, name), LONG, moment, llm.reset_prefix_cache)) == expected
    assert llm.num_restarts == restarts + 1

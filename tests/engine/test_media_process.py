"""A model that sees in an engine of its own process: the same answers, and they survive its death."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import LLM, RequestOutput, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import InvalidRequestError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.sampling_params import BeamSearchParams
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.killed_engine import MOMENTS, killed
from tests.helpers.seeing import noise
from tests.helpers.tiny_vision import make_vision

pytestmark = [pytest.mark.engine, pytest.mark.warm]

CHUNK = 8  # tokens: a prompt is many steps long, and a picture's 16 vectors are used by several of them
OPTIONS: dict[str, Any] = {
    "dtype": "float32",
    "num_gpu_blocks_override": 400,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 16,
    "long_prefill_token_threshold": CHUNK,
    "enable_prompt_embeds": True,
}
FIRST, SECOND = noise(40, 30, 1), noise(28, 28, 2)
WORDS = "the quick brown fox jumps over the lazy dog " * 12  # a prompt of many chunks


def asked(text: str, *pictures: Any) -> dict[str, Any]:
    return {"prompt": text, **({"multi_modal_data": {"image": list(pictures)}} if pictures else {})}


PROMPTS: list[dict[str, Any]] = [
    asked("USER: <image>\nwhat is the quick brown fox ASSISTANT:", FIRST),
    asked("USER: <image>\nwhat is the slow river ASSISTANT:", FIRST),  # the same picture
    asked("USER: <image> and then <image> one two three", SECOND, FIRST),
    asked(f"{WORDS}<image> to be or not to be", SECOND),  # its picture comes late
    asked("to be or not to be"),
    {"prompt_embeds": np.random.default_rng(1).normal(0, 0.1, (40, 64))},  # in the place of tokens
]
LATE = 3
SEVERAL = 2  # completions of the first prompt


def params(number: int) -> SamplingParams:
    given = {"temperature": 0.7, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    return SamplingParams(**given, n=SEVERAL if number == 0 else 1, output_kind=RequestOutputKind.FINAL_ONLY)


def tokens_of(output: RequestOutput) -> list[list[int]]:
    return [list(completion.token_ids) for completion in output.outputs]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision("llava", tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def expected(directory: Path) -> list[list[list[int]]]:
    """By an engine in this process, each by itself."""
    llm = LLM(model=str(directory), **OPTIONS)
    found = []
    for number, prompt in enumerate(PROMPTS):
        found.append(tokens_of(llm.generate(prompt, params(number), use_tqdm=False)[0]))
    assert len(found[0]) == SEVERAL and found[0][0] != found[0][1] != found[1][0]
    return found


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def llm(directory: Path, runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    llm = runner.run(AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS)))
    yield llm
    runner.run(llm.shutdown(drain=False))


async def answer(llm: AsyncLLM, number: int, name: str) -> list[list[int]]:
    return tokens_of([output async for output in llm.generate(PROMPTS[number], params(number), f"{name}-{number}")][-1])


async def answers(llm: AsyncLLM, name: str) -> list[list[list[int]]]:
    return list(await asyncio.gather(*(answer(llm, number, name) for number in range(len(PROMPTS)))))


def test_answers_are_those_of_an_engine_in_this_process(llm: AsyncLLM, runner: asyncio.Runner, expected: Any) -> None:
    assert runner.run(answers(llm, "first")) == expected


def test_beams_and_values_are_those_of_an_engine_in_this_process(
    directory: Path, llm: AsyncLLM, runner: asyncio.Runner
) -> None:
    offline = LLM(model=str(directory), **OPTIONS)
    search = BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True)
    (beams,) = offline.beam_search(PROMPTS[2], search)
    (values,) = offline.embed(PROMPTS[2], use_tqdm=False)

    async def asked() -> None:
        (found,) = [output async for output in llm.beam_search(PROMPTS[2], search, "beams")]
        assert [found.prompt_token_ids + each for each in tokens_of(found)] == [each.tokens for each in beams.sequences]
        await llm.reset_mm_cache()
        (output,) = [output async for output in llm.encode(PROMPTS[2], PoolingParams(task="embed"), "values")]
        assert output.outputs.data.tolist() == values.outputs.embedding
        with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens is 20"):
            short = PoolingParams(task="embed", truncate_prompt_tokens=20)
            await anext(llm.encode(PROMPTS[2], short, "short"))

    runner.run(asked())


@pytest.mark.parametrize("moment", MOMENTS)
def test_requests_go_on_when_the_engine_is_killed(
    llm: AsyncLLM, runner: asyncio.Runner, expected: Any, moment: str
) -> None:
    """What towers had made is gone with it: pictures are encoded again, and the tokens stay the same."""

    async def forget() -> None:
        await llm.reset_prefix_cache()
        await llm.reset_encoder_cache()

    restarts = llm.num_restarts
    assert runner.run(killed(llm, lambda name: answers(llm, name), LATE, moment, forget)) == expected
    assert llm.num_restarts == restarts + 1

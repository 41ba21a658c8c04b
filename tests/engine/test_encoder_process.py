"""An encoder-decoder model in an engine of its own process: the same answers, and they survive its death."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutputKind, SamplingParams
from cadence.config.args import EngineArgs
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import BeamSearchParams
from cadence.entrypoints.async_llm import AsyncLLM
from tests.helpers.tiny_seq2seq import make_seq2seq

pytestmark = [pytest.mark.engine, pytest.mark.warm]

OPTIONS: dict[str, Any] = {"dtype": "float32", "num_gpu_blocks_override": 300}
SOURCES = [[5, 6, 7, 8, 9, 1], [11, 12, 13, 1], [*range(20, 60), 1]]
PROMPTS: list[Any] = [
    SOURCES[0],
    "a dog",
    {"encoder_prompt": SOURCES[1], "decoder_prompt": [1, 44, 45]},
    {"encoder_prompt": "a dog", "decoder_prompt": "ran"},
    {"prompt_token_ids": SOURCES[2]},
]


def params(**changes: Any) -> SamplingParams:
    given = {"temperature": 0.7, "seed": 5, "max_tokens": 60, "ignore_eos": True}
    return SamplingParams(**given | changes, output_kind=RequestOutputKind.FINAL_ONLY)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_seq2seq("bart", tmp_path_factory.mktemp("seq2seq"))


@pytest.fixture(scope="module")
def expected(directory: Path) -> tuple[list[list[int]], list[list[int]]]:
    """By an engine in this process: the tokens of all prompts, and the beams of the first."""
    llm = LLM(model=str(directory), **OPTIONS)
    outputs = llm.generate(PROMPTS, params(), use_tqdm=False)
    (beams,) = llm.beam_search(PROMPTS[:1], BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True))
    return [list(output.outputs[0].token_ids) for output in outputs], [beam.tokens for beam in beams.sequences]


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def llm(directory: Path, runner: asyncio.Runner) -> Iterator[AsyncLLM]:
    llm = runner.run(AsyncLLM.start(EngineArgs(model=str(directory), **OPTIONS)))
    yield llm
    runner.run(llm.shutdown(drain=False))


async def tokens_of(llm: AsyncLLM, number: int, name: str) -> list[int]:
    outputs = [output async for output in llm.generate(PROMPTS[number], params(), f"{name}-{number}")]
    return list(outputs[-1].outputs[0].token_ids)


async def all_tokens(llm: AsyncLLM, name: str) -> list[list[int]]:
    return list(await asyncio.gather(*(tokens_of(llm, number, name) for number in range(len(PROMPTS)))))


def test_answers_are_those_of_an_engine_in_this_process(llm: AsyncLLM, runner: asyncio.Runner, expected: Any) -> None:
    assert runner.run(all_tokens(llm, "first")) == expected[0]

    async def beams() -> list[list[int]]:
        search = BeamSearchParams(beam_width=2, max_tokens=5, ignore_eos=True)
        (output,) = [output async for output in llm.beam_search(PROMPTS[0], search, "beams")]
        return [[1, *completion.token_ids] for completion in output.outputs]

    assert runner.run(beams()) == expected[1]


def test_requests_go_on_when_the_engine_is_killed(llm: AsyncLLM, runner: asyncio.Runner, expected: Any) -> None:
    """What encoders had written is gone with it: contents are encoded again, and the tokens stay the same."""

    async def disturbed() -> list[list[int]]:
        answers = asyncio.ensure_future(all_tokens(llm, "killed"))
        while not any(entry.token_ids for entry in llm._supervisor._logic.journal):
            await asyncio.sleep(0.001)
        os.kill(llm.engine_pid, signal.SIGKILL)
        return await answers

    restarts = llm.num_restarts
    assert runner.run(disturbed()) == expected[0]
    assert llm.num_restarts == restarts + 1


def test_a_bad_prompt_is_refused_before_it_is_sent(llm: AsyncLLM, runner: asyncio.Runner) -> None:
    async def ask(prompt: Any) -> None:
        async for _ in llm.generate(prompt, params(), "bad"):
            pass

    for prompt, says in (({"encoder_prompt": [1] * 129}, "at most 128"), ([1] * 129, "at most 128"),
                         ({"decoder_prompt": [1]}, "encoder_prompt is missing")):  # fmt: skip
        with pytest.raises(InvalidRequestError, match=says):
            runner.run(ask(prompt))

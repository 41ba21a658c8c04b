"""Token for token what transformers gives, for every family, batched and alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from tests.helpers import oracle
from tests.helpers.tiny_models import FAMILIES, USUAL, VOCAB
from tests.helpers.tiny_states import STATE_FAMILIES
from tests.helpers.wide import DIFFERENT, mostly_wide

pytestmark = pytest.mark.engine

LENGTHS = (1, 17, 300)
SHORT = 40  # tokens of a prompt that is longer than the families' window
NUM_TOKENS = 40
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=5, prompt_logprobs=3)


@pytest.fixture(scope="module")
def pair(request: pytest.FixtureRequest, tiny_model: Callable[[str], Path]) -> tuple[LLM, Any]:
    directory = tiny_model(request.param)
    llm = LLM(str(directory), dtype="float32", max_model_len=400, num_gpu_blocks_override=200)
    return llm, oracle.load_oracle(directory)


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    rng = random.Random(7)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in lengths]


@pytest.mark.parametrize("pair", mostly_wide(FAMILIES, USUAL), indirect=True)
def test_tokens_and_logprobs_of_one_prompt(pair: tuple[LLM, Any]) -> None:
    llm, reference = pair
    prompt = prompts_of([SHORT])[0]
    check(reference, prompt, llm.generate(prompt, replace(PARAMS, max_tokens=12), use_tqdm=False)[0])


@pytest.mark.parametrize("pair", mostly_wide([*FAMILIES, *STATE_FAMILIES], DIFFERENT), indirect=True)
def test_greedy_tokens_and_logprobs(pair: tuple[LLM, Any]) -> None:
    """Of prompts of all lengths, together and alone."""
    llm, reference = pair
    prompts = prompts_of(LENGTHS)
    together = llm.generate(prompts, PARAMS, use_tqdm=False)
    for prompt, batched in zip(prompts, together, strict=True):
        check(reference, prompt, batched)
        llm.reset_prefix_cache()
        alone = llm.generate(prompt, PARAMS, use_tqdm=False)[0]
        assert list(alone.outputs[0].token_ids) == list(batched.outputs[0].token_ids)


def check(reference: Any, prompt: list[int], output: RequestOutput) -> None:
    tokens = list(output.outputs[0].token_ids)
    assert tokens and tokens == oracle.likeliest(reference, prompt, tokens)
    check_logprobs(reference, prompt, output)


def check_logprobs(reference: Any, prompt: list[int], output: RequestOutput) -> None:
    completion = output.outputs[0]
    tokens = prompt + list(completion.token_ids)
    expected = oracle.logprobs(reference, tokens)
    assert output.prompt_logprobs is not None and completion.logprobs is not None
    assert output.prompt_logprobs[0] is None and len(output.prompt_logprobs) == len(prompt)
    positions = output.prompt_logprobs[1:] + completion.logprobs
    for index, position in enumerate(positions):
        assert position is not None
        line = expected[index]
        assert tokens[index + 1] in position
        for token_id, logprob in position.items():
            assert logprob.logprob == pytest.approx(float(line[token_id]), abs=1e-4)
        ranked = sorted(position.values(), key=lambda logprob: logprob.rank or 0)
        assert [logprob.logprob for logprob in ranked] == sorted((v.logprob for v in ranked), reverse=True)
    assert completion.cumulative_logprob == pytest.approx(
        sum(float(expected[len(prompt) - 1 + i][token]) for i, token in enumerate(completion.token_ids)), abs=1e-3
    )

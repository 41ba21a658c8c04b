"""Models with layers that keep a state in place of keys, through the whole engine: what transformers gives."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM, SamplingParams
from tests.e2e.test_transformers_parity import check
from tests.helpers import oracle
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_states import STATE_FAMILIES

pytestmark = pytest.mark.engine

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=3)


def prompt_of(length: int, seed: int = 0) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(3, VOCAB) for _ in range(length)]


@pytest.mark.parametrize("family", STATE_FAMILIES)
def test_tokens_and_logprobs_are_those_of_transformers(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model(family)
    llm, reference = LLM(str(directory), dtype="float32", max_model_len=400), oracle.load_oracle(directory)
    prompts = [prompt_of(length, length) for length in (1, 17, 90)]
    for prompt, output in zip(prompts, llm.generate(prompts, PARAMS, use_tqdm=False), strict=True):
        check(reference, prompt, output)

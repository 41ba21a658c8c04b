"""Models in the formats of quantised checkpoints: what transformers gives with the values that they stand for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from tests.helpers import oracle
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_quantized import FORMS, make_quantized

pytestmark = pytest.mark.engine

NUM_TOKENS = 24
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3, prompt_logprobs=0)
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 256, "kv_cache_dtype": "float32"}
WIDENED = 2e-4  # largest difference of logprobs where weights are dequantised
PACKED = (0.06, 0.4)  # mean and largest, where activations meet a quantised matrix in 8 bits


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    found: dict[str, Path] = {}

    def get(form: str) -> Path:
        if form not in found:
            found[form] = make_quantized(form, tmp_path_factory.mktemp("form"))
        return found[form]

    return get


def prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in (1, 9, 70)]


@pytest.mark.parametrize("form", FORMS)
def test_dequantised_it_is_what_transformers_gives(made: Callable[[str], Path], form: str) -> None:
    llm = LLM(str(made(form)), quantization="none", **OPTIONS)
    reference = oracle.load_oracle(made(form).parent / "plain")
    for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS, use_tqdm=False), strict=True):
        assert list(output.outputs[0].token_ids) == oracle.greedy(reference, prompt, NUM_TOKENS)
        assert max(differences(reference, prompt, output)) < WIDENED


@pytest.mark.parametrize("form", FORMS)
def test_as_it_is_stored_it_stays_near(made: Callable[[str], Path], form: str) -> None:
    llm = LLM(str(made(form)), **OPTIONS)
    reference = oracle.load_oracle(made(form).parent / "plain")
    outputs = llm.generate(prompts(), PARAMS, use_tqdm=False)
    found = [each for p, out in zip(prompts(), outputs, strict=True) for each in differences(reference, p, out)]
    mean, worst = sum(found) / len(found), max(found)
    print(f"{form}: mean {mean:.4f}, largest {worst:.4f}")
    packed = FORMS[form].exact or form == "bnb int8"
    assert (mean, worst) < (PACKED if packed else (WIDENED, WIDENED)) and worst < (PACKED[1] if packed else WIDENED)


def differences(reference: Any, prompt: list[int], output: RequestOutput) -> list[float]:
    """Of logprobs, of the prompt's tokens and of those that followed it."""
    completion = output.outputs[0]
    tokens = prompt + list(completion.token_ids)
    expected = oracle.logprobs(reference, tokens)
    assert output.prompt_logprobs is not None and completion.logprobs is not None
    places = [*output.prompt_logprobs[1:], *completion.logprobs]
    pairs = zip(places, expected[: len(places)], tokens[1:], strict=True)
    return [abs(place[token].logprob - float(line[token])) for place, line, token in pairs if place is not None]

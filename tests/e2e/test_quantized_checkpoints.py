"""Models in the formats of quantised checkpoints: what transformers gives with the values that they stand for."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, RequestOutput, SamplingParams
from cadence.config.reference import find_model
from cadence.core.errors import ConfigError
from cadence.models.loader.sharded_state import save_sharded
from tests.helpers import oracle
from tests.helpers.tiny_models import VOCAB
from tests.helpers.tiny_quantized import FORMS, make_quantized
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

NUM_TOKENS = 24
PARAMS = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True, logprobs=3, prompt_logprobs=0)
OPTIONS: dict[str, Any] = {
    "dtype": "float32", "max_model_len": 256, "kv_cache_dtype": "float32", "num_gpu_blocks_override": 100,
}  # fmt: skip
WIDENED = 2e-4  # largest difference of logprobs where weights are dequantised
SHARED = ("nf4, twice", "W8A16 asymmetric", "W4A16 channel", "AWQ", "GPTQ 4 bits, by activation", "FP8 block")
# Every kind of reader; that each form has the library's values is in tests/models/test_quantized_weights.py.
SOME = ("W4A16 asymmetric", "INT8 W8A8", "FP8 block", "NVFP4", "GPTQ 4 bits, by activation", "nf4, twice")
DEQUANTISED = ("W4A16 asymmetric", "GPTQ 4 bits, by activation")
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


@pytest.mark.parametrize("form", mostly_wide(FORMS, DEQUANTISED))
def test_dequantised_it_is_what_transformers_gives(made: Callable[[str], Path], form: str) -> None:
    llm = LLM(str(made(form)), quantization="none", **OPTIONS)
    reference = oracle.load_oracle(made(form).parent / "plain")
    for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS, use_tqdm=False), strict=True):
        tokens = list(output.outputs[0].token_ids)
        assert len(tokens) == NUM_TOKENS and tokens == oracle.likeliest(reference, prompt, tokens)
        assert max(differences(reference, prompt, output)) < WIDENED


@pytest.mark.parametrize("form", mostly_wide(FORMS, SOME))
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


def say(model: Path, **options: Any) -> list[RequestOutput]:
    with LLM(str(model), **OPTIONS | options) as llm:
        return llm.generate(prompts(), PARAMS, use_tqdm=False)


@pytest.mark.parametrize("form", mostly_wide(SHARED, SHARED[-1:]))
def test_ranks_say_what_one_says(made: Callable[[str], Path], tmp_path: Path, form: str) -> None:
    """Sums of two ranks are rounded once more; files cut for ranks hold the same blocks. Where columns are in an order
    of their own they hold numbers and that order; a rank that reads the checkpoint may have values there."""
    reference = oracle.load_oracle(made(form).parent / "plain")
    outputs = say(made(form), tensor_parallel_size=2)
    found = [each for p, out in zip(prompts(), outputs, strict=True) for each in differences(reference, p, out)]
    assert max(found) < (PACKED[1] if FORMS[form].exact else WIDENED)
    save_sharded(find_model(str(made(form))), 2, tmp_path / "cut")
    again = say(tmp_path / "cut", tensor_parallel_size=2, load_format="sharded_state")
    if "by activation" in form:
        found = [each for p, out in zip(prompts(), again, strict=True) for each in differences(reference, p, out)]
        assert max(found) < PACKED[1]
    else:
        assert [out.outputs[0].logprobs for out in again] == [out.outputs[0].logprobs for out in outputs]


@pytest.mark.parametrize("form", mostly_wide(["AWQ", "W8A16 group 128"], ["AWQ"]))
def test_a_tied_head_is_the_embedding(tmp_path: Path, form: str) -> None:
    model = make_quantized(form, tmp_path, tie_word_embeddings=True)
    reference = oracle.load_oracle(tmp_path / "plain")
    for prompt, output in zip(prompts(), say(model, quantization="none"), strict=True):
        assert max(differences(reference, prompt, output)) < WIDENED


def test_it_may_be_quantised_once_more_and_named(made: Callable[[str], Path]) -> None:
    model = made("AWQ")
    assert say(model, quantization="awq_marlin")[1].outputs == say(model)[1].outputs
    assert len(say(model, quantization="int8")[2].outputs[0].token_ids) == NUM_TOKENS
    with pytest.raises(ConfigError, match=r"quantization=gptq: the weights of .* are quantised by awq"):
        say(model, quantization="gptq")
    with pytest.raises(ConfigError, match=r"is not a .gguf file"):
        say(model, quantization="gguf")


def test_plain_kernels_read_it_too(made: Callable[[str], Path]) -> None:
    reference = oracle.load_oracle(made("AWQ").parent / "plain")
    for prompt, output in zip(prompts(), say(made("AWQ"), kernels="reference"), strict=True):
        assert max(differences(reference, prompt, output)) < WIDENED

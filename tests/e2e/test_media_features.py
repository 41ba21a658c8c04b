"""Pictures beside what else a request or an engine may have: adapters, quantised weights and caches, grammars."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM, SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.core.lora_request import LoRARequest
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.core.structured_outputs import StructuredOutputsParams
from tests.e2e.test_media import BASE, PLAIN, PROMPTS, Answers, answers, barring, check_parity, prompt
from tests.helpers.adapters import save_adapter
from tests.helpers.seeing import SeeingOracle
from tests.helpers.tiny_vision import make_vision
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine]

LANGUAGE = r".*language_model.*\.(q_proj|v_proj|o_proj|down_proj)"  # matrices of the part that has adapters
GREEDY = SamplingParams(**PLAIN)
CHUNKS: dict[str, Any] = {"max_num_batched_tokens": 16, "long_prefill_token_threshold": 5}
QUANTISED: dict[str, dict[str, Any]] = {
    "int8 weights": {"quantization": "int8"},
    "int4 weights": {"quantization": "int4"},
    "fp8 weights": {"quantization": "fp8"},
    "int8 KV cache": {"kv_cache_dtype": "int8"},
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_vision("llava", tmp_path_factory.mktemp("llava"))


def alone(llm: LLM, params: SamplingParams) -> Answers:
    """Each by itself, with an empty cache."""
    found: Answers = []
    for each in PROMPTS:
        llm.reset_prefix_cache()
        found += answers(llm.generate(prompt(*each), params, use_tqdm=False))
    return found


@dataclass(frozen=True)
class Adapted:
    request: LoRARequest
    oracle: SeeingOracle  # the same model with it, as PEFT has it


def adapted(directory: Path, path: Path, number: int) -> Adapted:
    oracle = SeeingOracle(directory)
    config: Mapping[str, Any] = {"task_type": "CAUSAL_LM", "r": 4 * number, "lora_alpha": 16}
    oracle.model = save_adapter(oracle.model, path, seed=number, target_modules=LANGUAGE, **config)
    return Adapted(LoRARequest(str(number), number, str(path)), oracle)


def test_adapters_of_the_language_part_are_those_of_peft(directory: Path, tmp_path: Path) -> None:
    """Two of them, and none, about the same pictures in one batch: a picture is encoded for all, its keys are not."""
    both = [adapted(directory, tmp_path / str(number), number) for number in (1, 2)]
    plain = SeeingOracle(directory)
    pads = [plain.model.config.image_token_id]
    llm = LLM(model=str(directory), enable_lora=True, max_loras=2, **BASE)
    prompts = [prompt(*each) for each in PROMPTS]
    for _ in range(2):  # the second time from caches
        requests = [None, both[0].request, both[1].request]
        given, adapters = [each for each in prompts for _ in requests], requests * len(prompts)
        found = answers(llm.generate(given, barring(pads), use_tqdm=False, lora_request=adapters))
        assert found[0][0] != found[1][0] != found[2][0] != found[0][0]
        for number, (text, pictures) in enumerate(PROMPTS):
            for answer, oracle in zip(found[3 * number :], (plain, both[0].oracle, both[1].oracle), strict=False):
                check_parity(oracle.logprobs(text.replace("IMAGE", "<image>"), pictures, answer[0]), answer, pads)


@pytest.mark.parametrize("way", mostly_wide(QUANTISED, ("int8 weights", "int8 KV cache")))
def test_quantised_numbers_are_the_same_in_any_company(directory: Path, way: str) -> None:
    """Of the language part: what a tower gives stays near what it gave."""
    whole = alone(LLM(model=str(directory), **BASE), GREEDY)
    found = alone(LLM(model=str(directory), **BASE, **QUANTISED[way]), GREEDY)
    together = LLM(model=str(directory), **BASE, **QUANTISED[way], **CHUNKS)
    for _ in range(2):
        assert answers(together.generate([prompt(*each) for each in PROMPTS], GREEDY, use_tqdm=False)) == found
    assert found != whole, "nothing was quantised"
    firsts = np.array([[lines[0] for _, lines in each] for each in (found, whole)])
    assert np.abs(firsts[0] - firsts[1]).mean() < 1.0


def test_a_grammar_holds_what_is_said_of_pictures(directory: Path) -> None:
    """Each request to its own, beside requests that are free, in chunks and bursts."""
    regexes = ["(ab|cd){2,9}", "[0-9]{3}-[0-9]{3}", "(yes|no)"]
    held = [
        SamplingParams(**PLAIN | {"structured_outputs": StructuredOutputsParams(regex=each), "ignore_eos": False})
        for each in regexes
    ]
    params = [held[0], GREEDY, held[1], held[2], GREEDY, held[0]]
    prompts = [prompt(*each) for each in PROMPTS]
    plain, found = LLM(model=str(directory), **BASE), LLM(model=str(directory), **BASE, **CHUNKS, num_scheduler_steps=4)
    expected: Answers = []
    for given, own in zip(prompts, params, strict=True):
        plain.reset_prefix_cache()
        expected += answers(plain.generate(given, own, use_tqdm=False))
    outputs = found.generate(prompts, params, use_tqdm=False)
    assert answers(outputs) == expected
    assert outputs[3].outputs[0].text in ("yes", "no") and set(outputs[0].outputs[0].text) <= set("abcd")


def test_values_of_prompts_with_pictures(directory: Path) -> None:
    """The last token's hidden state, at length 1; a second time the picture comes from the cache."""
    oracle = SeeingOracle(directory)
    llm = LLM(model=str(directory), **BASE, **CHUNKS)
    asked = [prompt(*each) for each in PROMPTS]
    for _ in range(2):
        found = [output.outputs.embedding for output in llm.embed(asked, use_tqdm=False)]
        for values, each in zip(found, PROMPTS, strict=True):
            inputs = oracle.inputs(each[0].replace("IMAGE", "<image>"), each[1])
            with torch.inference_mode():
                hidden = oracle.model.model(**inputs).last_hidden_state[0, -1]
            torch.testing.assert_close(torch.tensor(values), hidden / hidden.norm(), atol=1e-4, rtol=1e-4)
    assert not np.allclose(found[0], found[4], atol=1e-3), "another picture, other values"
    with pytest.raises(InvalidRequestError, match="truncate_prompt_tokens is 6"):
        llm.embed(asked[0], pooling_params=PoolingParams(truncate_prompt_tokens=6), use_tqdm=False)

"""GGUF files of families beside Llama's, through the whole engine: tokens of transformers, and blocks as they lie."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from tests.e2e.test_transformers_parity import check
from tests.helpers import oracle
from tests.helpers.gguf_conversion import to_gguf
from tests.helpers.tiny_models import VOCAB
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

BASE: dict[str, Any] = {"max_model_len": 200, "max_num_seqs": 4, "dtype": "float32", "kv_cache_dtype": "float32"}
PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=5, prompt_logprobs=3)
FAMILIES = ("starcoder2", "falcon_grouped", "mamba2_one_group", "granite_hybrid_one_group")  # plain, fused; states


def prompts() -> list[list[int]]:
    rng = random.Random(11)
    return [[rng.randrange(3, VOCAB) for _ in range(length)] for length in (1, 17, 90)]


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ("starcoder2", "granite_hybrid_one_group")))
def test_tokens_and_logprobs_are_those_of_transformers(
    family: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    path = to_gguf(tiny_model(family), tmp_path / "m.gguf")
    llm, reference = LLM(str(path), quantization="none", **BASE), oracle.load_oracle(tiny_model(family))
    for prompt, output in zip(prompts(), llm.generate(prompts(), PARAMS, use_tqdm=False), strict=True):
        check(reference, prompt, output)


@pytest.mark.parametrize("kind", mostly_wide(["Q8_0", "Q4_K", "Q4_0", "Q6_K"], ["Q8_0", "Q4_K"]))
@pytest.mark.parametrize(
    "family", mostly_wide(("starcoder2_wide", "mamba2_wide", "bamba_wide"), ("mamba2_wide", "bamba_wide"))
)
def test_blocks_say_what_their_values_do(
    family: str, kind: str, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """The numbers that a file of blocks stands for, in blocks and in float32: alike but for what rounds activations."""
    path = str(to_gguf(tiny_model(family), tmp_path / "m.gguf", kind))
    packed, plain = LLM(path, **BASE), LLM(path, quantization="none", **BASE)
    text = prompts()[-1]
    found, expected = (llm.generate([text], PARAMS, use_tqdm=False)[0].prompt_logprobs for llm in (packed, plain))
    assert found is not None and expected is not None
    pairs = [(one[token], other[token]) for one, other, token in zip(found, expected, text, strict=True) if one]
    differences = [abs(one.logprob - other.logprob) for one, other in pairs]
    assert 0.0 < sum(differences) / len(differences) < 0.1

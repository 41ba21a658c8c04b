"""Weights of few bits on a GPU: near the model they were made of, with bits of their own where that is promised."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.outputs import RequestOutput

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

OPTIONS: dict[str, Any] = {"max_model_len": 400, "kv_cache_memory_bytes": 1 << 26}
METHODS = {"fp8": 0.06, "int8": 0.03, "int4": 0.4}  # and how far logprobs may be away in the mean
PROMPTS = [{"prompt_token_ids": [3 + (7 * at + number) % 90 for at in range(5 + 40 * number)]} for number in range(6)]


def forced(llm: LLM) -> list[float]:
    """Logprobs of the longest prompt's tokens."""
    (output,) = llm.generate([PROMPTS[-1]], SamplingParams(max_tokens=1, prompt_logprobs=0), use_tqdm=False)
    tokens = PROMPTS[-1]["prompt_token_ids"][1:]
    found = (output.prompt_logprobs or [])[1:]
    return [entry[token].logprob for token, entry in zip(tokens, found, strict=True) if entry is not None]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2", "phi3"])
@pytest.mark.parametrize("method", METHODS)
def test_near_the_model(tiny_model: Callable[[str], Path], family: str, method: str) -> None:
    model = str(tiny_model(family))
    plain = forced(LLM(model, dtype="bfloat16", **OPTIONS))
    few = forced(LLM(model, dtype="bfloat16", quantization=method, **OPTIONS))
    error = sum(abs(one - other) for one, other in zip(plain, few, strict=True)) / len(plain)
    print(f"{family} {method}: {error:.4f}")
    assert 0 < error < METHODS[method]


def said(outputs: list[RequestOutput]) -> list[Any]:
    """Tokens, and logprobs where they were asked for."""
    found = [output.outputs[0] for output in outputs]
    logprobs = [[sorted(entry.logprob for entry in at.values()) for at in one.logprobs or []] for one in found]
    return list(zip([list(one.token_ids) for one in found], logprobs, strict=True))


@pytest.mark.parametrize("method", METHODS)
def test_the_same_bits_in_any_company(tiny_model: Callable[[str], Path], method: str) -> None:
    llm = LLM(str(tiny_model("llama")), dtype="bfloat16", quantization=method, deterministic=True, **OPTIONS)
    params = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=2)
    together = said(llm.generate(PROMPTS, params, use_tqdm=False))
    alone = [said(llm.generate([prompt], params, use_tqdm=False))[0] for prompt in PROMPTS]
    assert together == alone


@pytest.mark.parametrize("layout", [{"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}], ids=str)
@pytest.mark.parametrize("method", ["fp8", "int4"])
def test_ranks(tiny_model: Callable[[str], Path], layout: dict[str, int], method: str) -> None:
    model = str(tiny_model("llama"))
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    options = {"dtype": "float32", "quantization": method, **OPTIONS}
    one = said(LLM(model, **options).generate(PROMPTS, params, use_tqdm=False))
    ranks = said(LLM(model, **options, **layout, device_ids=[0, 0]).generate(PROMPTS, params, use_tqdm=False))
    assert sum(a == b for a, b in zip(one, ranks, strict=True)) >= len(one) - 2  # scales of slices are their own

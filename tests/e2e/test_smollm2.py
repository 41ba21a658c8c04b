"""The real model, token for token, and as people use it."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from cadence import LLM, SamplingParams
from tests.e2e.test_transformers_parity import PARAMS, check
from tests.helpers.smollm2 import hf_reference

pytestmark = pytest.mark.engine


def test_greedy_tokens_and_logprobs() -> None:
    """Its weights widened to float32, as transformers has them. Random ids leave the model unsure of itself: near-ties
    are where an engine would slip."""
    llm = LLM("smollm2", dtype="float32", quantization="none", max_model_len=1024, num_gpu_blocks_override=300)
    rng, params = random.Random(5), replace(PARAMS, max_tokens=16)
    prompts = [[rng.randrange(100, 49_000) for _ in range(length)] for length in (1, 17, 90)]
    together = llm.generate(prompts, params, use_tqdm=False)
    for prompt, batched in zip(prompts, together, strict=True):
        check(hf_reference(), prompt, batched)
    llm.reset_prefix_cache()
    alone = llm.generate(prompts[1], params, use_tqdm=False)[0]
    assert list(alone.outputs[0].token_ids) == list(together[1].outputs[0].token_ids)


def test_it_answers() -> None:
    """As it comes: on a CPU the file's own 4- and 8-bit blocks."""
    llm = LLM("smollm2", max_model_len=1024, num_gpu_blocks_override=300)
    recommended = llm.get_default_sampling_params()
    assert (recommended.temperature, recommended.top_p) == (0.2, 0.9)
    assert "Paris" in llm.generate("The capital of France is", use_tqdm=False)[0].outputs[0].text
    question = [{"role": "user", "content": "Who wrote Romeo and Juliet?"}]
    completion = llm.chat(question, SamplingParams(temperature=0, max_tokens=64), use_tqdm=False)[0].outputs[0]
    assert "Shakespeare" in completion.text

"""Stages of a model, each in a process of its own: they say what one device says, and compute beside each other."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence import LLM, SamplingParams

pytestmark = pytest.mark.engine

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "smollm3", "opt", "gpt2", "gemma2", "gemma3", "phi3")
OPTIONS = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}
GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=3, prompt_logprobs=2)
SEEDED = SamplingParams(temperature=0.9, seed=7, max_tokens=24, ignore_eos=True, repetition_penalty=1.2)
PLAIN = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.mark.parametrize("family", FAMILIES)
def test_two_stages_say_what_one_device_says(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory, draw = str(tiny_model(family)), random.Random(3)
    prompts = [[draw.randrange(3, 300) for _ in range(length)] for length in (1, 17, 90)]
    found = []
    for options in ({}, {"pipeline_parallel_size": 2}):
        llm = LLM(directory, **OPTIONS, **options)
        found.append([llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SEEDED, PLAIN)])
        del llm
    for alone, shared in zip(*found, strict=True):
        for one, other in zip(alone, shared, strict=True):
            assert other.outputs[0].token_ids == one.outputs[0].token_ids
            assert other.outputs[0].logprobs == one.outputs[0].logprobs
            assert other.prompt_logprobs == one.prompt_logprobs

"""Ranks and stages on GPUs say what one process says. Here they share one, and reach each other through the host."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, SamplingParams
from cadence.core.outputs import RequestOutput

pytestmark = [pytest.mark.engine, pytest.mark.gpu]

OPTIONS: dict[str, Any] = {"max_model_len": 400, "kv_cache_memory_bytes": 1 << 26, "dtype": "float32"}
LAYOUTS = {
    "TP2": {"tensor_parallel_size": 2, "device_ids": [0, 0]},
    "PP2": {"pipeline_parallel_size": 2, "device_ids": [0, 0]},
    "TP2 x PP2": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "device_ids": [0] * 4},
    "DP2": {"data_parallel_size": 2, "device_ids": [0, 0]},
}
PARAMS = [
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True),
    SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2, prompt_logprobs=1),
    SamplingParams(temperature=0.9, seed=7, max_tokens=40, ignore_eos=True),
    SamplingParams(temperature=0.8, seed=8, top_p=0.9, max_tokens=24, ignore_eos=True, repetition_penalty=1.2),
]
REPEATED = [7, 8, 9, 10, 7, 8, 9, 10, 7, 8, 9, 10, 7, 8]


def prompts(count: int = 12) -> list[dict[str, list[int]]]:
    texts = [[3 + (5 * at + number) % 90 for at in range(3 + 17 * number)] for number in range(count - 1)]
    return [{"prompt_token_ids": tokens} for tokens in [*texts, REPEATED]]


def generated(model: Path, **options: Any) -> list[RequestOutput]:
    llm = LLM(str(model), **OPTIONS, **options)
    found = llm.generate(prompts(), [PARAMS[number % len(PARAMS)] for number in range(12)], use_tqdm=False)
    close = getattr(llm, "close", None)
    if close:
        close()
    return found


def same(found: list[RequestOutput], expected: list[RequestOutput]) -> None:
    for number, (one, other) in enumerate(zip(found, expected, strict=True)):
        assert list(one.outputs[0].token_ids) == list(other.outputs[0].token_ids), number
        for ours, theirs in zip(one.outputs[0].logprobs or [], other.outputs[0].logprobs or [], strict=True):
            assert {token: entry.logprob for token, entry in ours.items()} == pytest.approx(
                {token: entry.logprob for token, entry in theirs.items()}, abs=2e-3
            )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_layouts(tiny_model: Callable[[str], Path], family: str, layout: str) -> None:
    model = tiny_model(family)
    same(generated(model, **LAYOUTS[layout]), generated(model))


@pytest.mark.parametrize("layout", ["TP2", "PP2"])
@pytest.mark.parametrize("options", [{"enforce_eager": True}, {"num_scheduler_steps": 4}, {"warmup": "full"}], ids=str)
def test_layouts_however_forwards_are_queued(
    tiny_model: Callable[[str], Path], layout: str, options: dict[str, Any]
) -> None:
    model = tiny_model("llama")
    same(generated(model, **LAYOUTS[layout], **options), generated(model))


@pytest.mark.parametrize("layout", ["TP2", "PP2"])
def test_drafts(tiny_model: Callable[[str], Path], layout: str) -> None:
    model = tiny_model("llama")
    speculative = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    same(generated(model, **LAYOUTS[layout], speculative_config=speculative), generated(model))

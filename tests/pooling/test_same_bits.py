"""The values of a request are the same bits, however it is run."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import SamplingParams
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.tiny_models import make_tiny

pytestmark = pytest.mark.engine

OPTIONS: dict[str, Any] = {"max_model_len": 128, "block_size": 8, "max_num_seqs": 8, "dtype": "float32"}
CROWDED: dict[str, Any] = {
    "max_num_batched_tokens": 16,
    "num_gpu_blocks_override": 24,
    "num_scheduler_steps": 1,
    "max_inter_token_ms": 0.0,
}  # texts of 33 and 16 tokens and a prompt of 120 take all blocks but one: as the texts grow, the prompt loses its own
TASKS = (PoolingParams(), PoolingParams(task="token_embed"))


def prompts() -> list[list[int]]:
    """The last begins as the third does, so that it finds keys of it."""
    draw = random.Random(4)
    made = [[draw.randrange(5, 320) for _ in range(length)] for length in (120, 1, 70, 33, 16)]
    return [*made, made[2][:48] + made[3]]


def encoded(llm: LLM, texts: list[list[int]], params: PoolingParams) -> list[np.ndarray]:
    asked = [{"prompt_token_ids": each} for each in texts]
    return [output.outputs.data for output in llm.encode(asked, params, use_tqdm=False)]


@pytest.mark.parametrize("pooling", ["LAST", "MEAN"])
def test_alone_in_a_batch_chunked_preempted_from_the_cache_and_beside_generation(tmp_path: Path, pooling: str) -> None:
    directory = str(make_tiny("llama", tmp_path))
    options = {**OPTIONS, "pooler_config": {"pooling_type": pooling}}
    with LLM(directory, **options, enable_prefix_caching=False) as llm:
        wanted = [[encoded(llm, [text], params)[0] for text in prompts()] for params in TASKS]
        together = [encoded(llm, prompts(), params) for params in TASKS]
        texts = [output.outputs[0].token_ids for output in llm.generate(growing(), long_answer(), use_tqdm=False)]
    with LLM(directory, **options, **CROWDED) as llm:
        llm.enqueue(growing(), long_answer())
        crowded = [encoded(llm, prompts(), params) for params in TASKS]
        again = [encoded(llm, prompts(), params) for params in TASKS]
        beside = llm.wait_for_completion(use_tqdm=False)
        metrics = {metric.name: getattr(metric, "value", 0) for metric in llm.get_metrics()}
    assert [output.outputs[0].token_ids for output in beside] == texts
    of_generation = sum(output.metrics.num_preemptions for output in beside if output.metrics is not None)
    assert metrics["vllm:num_preemptions"] > of_generation
    assert (metrics["vllm:prefix_cache_hits"] > 0) is (pooling == "LAST")  # a mean needs every hidden state
    for found in (together, crowded, again):
        for one, other in zip(wanted, found, strict=True):
            assert [np.array_equal(left, right) for left, right in zip(one, other, strict=True)] == [True] * 6


def growing() -> list[dict[str, list[int]]]:
    return [{"prompt_token_ids": prompts()[index]} for index in (3, 4)]


def long_answer() -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=50, ignore_eos=True)

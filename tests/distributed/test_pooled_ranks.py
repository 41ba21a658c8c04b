"""Values of a model whose layers are shared out: by ranks within 1e-5, by stages the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence import LLM
from cadence.core.pooled.pooling_params import PoolingParams
from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.tiny_scorers import make_headed
from tests.helpers.wide import mostly_wide

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FAMILIES = ("bert", "distilbert", "mpnet", "modernbert", "nomic")
PROMPTS = [[5, 9, 200, 31], list(range(20, 90)), [8]]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 160, "num_gpu_blocks_override": 200}


def scores(directory: Path, **options: Any) -> list[np.ndarray]:
    """Of texts, then of their tokens."""
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    with LLM(str(directory), **OPTIONS, **options) as llm:
        tasks = [PoolingParams(task=task, use_activation=False) for task in ("classify", "token_classify")]
        return [output.outputs.data for task in tasks for output in llm.encode(asked, task, use_tqdm=False)]


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ["bert", "modernbert"]))
def test_an_encoder_in_stages_gives_the_bits_of_one_device(family: str, tmp_path: Path) -> None:
    """Of a prompt with two texts, too; bert's first stage alone tells them apart."""
    directory = make_encoder(family, tmp_path)
    asked: list[Any] = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    asked.append({"prompt_token_ids": [5, 9, 200, 31, 40], "second_from": 3})
    params, found = PoolingParams(task="token_embed", normalize=False), []
    for stages in (1, 2):
        with LLM(str(directory), **OPTIONS, pipeline_parallel_size=stages) as llm:
            found.append([output.outputs.data.numpy() for output in llm.encode(asked, params, use_tqdm=False)])
    assert all(np.array_equal(one, other) for one, other in zip(*found, strict=True))
    np.testing.assert_allclose(found[1][0], states_of(directory)(PROMPTS[0]), atol=1e-5)


def test_ranks_and_stages_give_the_scores_of_one_device(tmp_path: Path) -> None:
    model = make_headed("qwen2", tmp_path, "AutoModelForSequenceClassification", num_labels=3)
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt])).logits[0].numpy() for prompt in PROMPTS]
    alone, stages = scores(tmp_path), scores(tmp_path, pipeline_parallel_size=2, max_num_batched_tokens=32)
    assert all(np.array_equal(one, other) for one, other in zip(alone, stages, strict=True))
    ranks = scores(tmp_path, tensor_parallel_size=2)
    for found in (alone, ranks):
        for one, other in zip(found[:3], wanted, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-5)
    for one, other in zip(alone[3:], ranks[3:], strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)

"""Decoders asked for vectors: what transformers' hidden states give."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.oracle import load_oracle
from tests.helpers.tiny_models import MAX_LEN, make_tiny

PROMPTS = [[5, 9, 200, 31], [7] * 3 + list(range(20, 90)), [8]]


def hidden_states(directory: Path, prompt: list[int]) -> np.ndarray:
    with torch.no_grad():
        output = load_oracle(directory)(torch.tensor([prompt]), output_hidden_states=True)
    return output.hidden_states[-1][0].float().numpy()


def normalised(vector: np.ndarray) -> np.ndarray:
    return vector / np.linalg.norm(vector, axis=-1, keepdims=True)


@pytest.mark.engine
@pytest.mark.parametrize("chunk", [64, 16])
def test_the_last_hidden_state_is_the_embedding(tmp_path: Path, chunk: int) -> None:
    directory = make_tiny("llama", tmp_path)
    with LLM(str(directory), max_model_len=MAX_LEN, max_num_batched_tokens=chunk, max_num_seqs=4) as llm:
        prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        vectors = [output.outputs.data for output in llm.encode(prompts, use_tqdm=False)]
        tokens = llm.encode(prompts, PoolingParams(task="token_embed", normalize=False), use_tqdm=False)
    for prompt, vector, each in zip(PROMPTS, vectors, tokens, strict=True):
        expected = hidden_states(directory, prompt)
        np.testing.assert_allclose(vector, normalised(expected[-1]), atol=1e-5)
        np.testing.assert_allclose(each.outputs.data, expected, atol=1e-4)

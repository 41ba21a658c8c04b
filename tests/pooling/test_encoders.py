"""Encoders: what transformers makes of the same tokens, whatever else is computed with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cadence.core.errors import ConfigError, InvalidRequestError, ModelFileError
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.tiny_encoders import FAMILIES, POSITIONS, make_encoder, states_of

pytestmark = pytest.mark.engine

PROMPTS = [[5, 9, 200, 31], [8], [7] * 3 + list(range(20, 200)), [250, 3, 77]]
TOKENS = PoolingParams(task="token_embed", normalize=False)


def values(llm: LLM, prompts: list[list[int]], params: PoolingParams) -> list[np.ndarray]:
    asked = [{"prompt_token_ids": prompt} for prompt in prompts]
    return [np.asarray(output.outputs.data) for output in llm.encode(asked, params, use_tqdm=False)]


def opened(directory: Path, **options: Any) -> LLM:
    return LLM(str(directory), max_num_seqs=4, kv_cache_memory_bytes=1 << 22, **options)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "modernbert_mean"])
def test_hidden_states_are_transformers(family: str, tmp_path: Path) -> None:
    """Texts of different lengths in one batch; each alone has the same bits."""
    directory = make_encoder(family, tmp_path)
    with opened(directory) as llm:
        together = values(llm, PROMPTS, TOKENS)
        alone = [values(llm, [prompt], TOKENS)[0] for prompt in PROMPTS]
        vectors = values(llm, PROMPTS, PoolingParams(task="embed"))
    oracle = states_of(directory)
    for prompt, states, single, vector in zip(PROMPTS, together, alone, vectors, strict=True):
        expected = oracle(prompt)
        np.testing.assert_allclose(states, expected, atol=1e-5)
        np.testing.assert_array_equal(states, single)
        np.testing.assert_allclose(vector, expected[0] / np.linalg.norm(expected[0]), atol=1e-5)


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "nomic"])
def test_scores_of_texts_are_transformers(family: str, tmp_path: Path) -> None:
    directory = make_encoder(family, tmp_path, "texts")
    with opened(directory) as llm:
        scores = values(llm, PROMPTS, PoolingParams(task="classify", use_activation=False))
    oracle = states_of(directory, "texts")
    for prompt, score in zip(PROMPTS, scores, strict=True):
        np.testing.assert_allclose(score, oracle(prompt), atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_scores_of_tokens_are_transformers(family: str, tmp_path: Path) -> None:
    directory = make_encoder(family, tmp_path, "tokens")
    with opened(directory) as llm:
        scores = values(llm, PROMPTS, PoolingParams(task="token_classify", use_activation=False))
    oracle = states_of(directory, "tokens")
    for prompt, score in zip(PROMPTS, scores, strict=True):
        np.testing.assert_allclose(score, oracle(prompt), atol=1e-5)


def test_what_an_encoder_is_not_asked_for(tmp_path: Path) -> None:
    directory = make_encoder("bert", tmp_path)
    with opened(directory) as llm:
        with pytest.raises(InvalidRequestError, match="this model writes no text: it can embed"):
            llm.generate([{"prompt_token_ids": [5]}], use_tqdm=False)
        with pytest.raises(InvalidRequestError, match=f"{POSITIONS}"):
            values(llm, [[5] * (POSITIONS + 1)], TOKENS)
        assert values(llm, [[5] * POSITIONS], TOKENS)[0].shape == (POSITIONS, 48)
    with pytest.raises(ConfigError, match="both ways: a prompt has to fit in one step"):
        opened(directory, max_num_batched_tokens=POSITIONS - 1)


def test_two_texts_of_a_prompt_are_told_apart(tmp_path: Path) -> None:
    """Beside a prompt of one text, and as transformers has it, whose inputs name the type of each token."""
    directory = make_encoder("bert", tmp_path, "texts")
    pair = [5, 9, 200, 31, 40, 41]
    with opened(directory) as llm:
        params = PoolingParams(task="classify", use_activation=False)
        asked = [{"prompt_token_ids": PROMPTS[0]}, {"prompt_token_ids": pair, "second_from": 4}]
        outputs = llm.encode(asked, params, use_tqdm=False)
        alone, together = (np.asarray(output.outputs.data) for output in outputs)
        (plain,) = values(llm, [pair], params)
    oracle = states_of(directory, "texts")
    np.testing.assert_allclose(together, oracle(pair, token_type_ids=torch.tensor([[0, 0, 0, 0, 1, 1]])), atol=1e-5)
    np.testing.assert_allclose(alone, oracle(PROMPTS[0]), atol=1e-5)
    assert np.abs(np.asarray(together) - np.asarray(plain)).max() > 1e-3


def test_nomics_own_names_of_a_configuration(tmp_path: Path) -> None:
    directory = make_encoder("nomic", tmp_path)
    with opened(directory) as llm:
        expected = values(llm, PROMPTS, TOKENS)
    path = directory / "config.json"
    config = json.loads(path.read_text())
    own = {"n_embd": "hidden_size", "n_inner": "intermediate_size", "n_layer": "num_hidden_layers"}
    own |= {"n_head": "num_attention_heads", "n_positions": "max_position_embeddings"}
    kept = {name: config[name] for name in ("architectures", "vocab_size", "type_vocab_size", "dtype")}
    named = {name: config[usual] for name, usual in own.items()}
    settings = {"rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "layer_norm_epsilon": 1e-12}
    path.write_text(json.dumps(kept | named | settings | {"activation_function": "swiglu", "prenorm": False}))
    with opened(directory) as llm:
        for found, theirs in zip(values(llm, PROMPTS, TOKENS), expected, strict=True):
            np.testing.assert_array_equal(found, theirs)
    path.write_text(json.dumps(kept | named | settings | {"prenorm": True}))
    with pytest.raises(ModelFileError, match="prenorm must be False, found True"):
        opened(directory)


def test_means_of_hidden_states(tmp_path: Path) -> None:
    directory = make_encoder("bert", tmp_path)
    with opened(directory, pooler_config={"pooling_type": "MEAN"}) as llm:
        together = values(llm, PROMPTS, PoolingParams(task="embed", normalize=False))
        alone = [values(llm, [prompt], PoolingParams(task="embed", normalize=False))[0] for prompt in PROMPTS]
    oracle = states_of(directory)
    for prompt, vector, single in zip(PROMPTS, together, alone, strict=True):
        np.testing.assert_allclose(vector, oracle(prompt).mean(axis=0), atol=1e-5)
        np.testing.assert_array_equal(vector, single)


def test_norms_of_the_first_checkpoints_have_other_names(tmp_path: Path) -> None:
    directory = make_encoder("bert", tmp_path)
    with opened(directory) as llm:
        expected = values(llm, PROMPTS, TOKENS)
    path = directory / "model.safetensors"
    older = {"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"}
    tensors = load_file(path)
    named = {}
    for name, tensor in tensors.items():
        end = ".".join(name.split(".")[-2:])
        named[name.removesuffix(end) + older.get(end, end)] = tensor
    assert set(named) != set(tensors)
    save_file(named, path, {"format": "pt"})
    with opened(directory) as llm:
        for found, wanted in zip(values(llm, PROMPTS, TOKENS), expected, strict=True):
            np.testing.assert_array_equal(found, wanted)

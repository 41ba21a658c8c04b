"""Adapters of encoders: each request has the values that PEFT gives with its adapter, whatever else is in its batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from cadence.core.errors import AdapterError
from cadence.core.lora_request import LoRARequest
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.adapters import save_adapter
from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.engine

PROMPTS = [[5, 9, 200, 31], [8, 60, 61], list(range(20, 70)), [250, 3, 77]]
TOKENS = PoolingParams(task="token_embed", normalize=False)
MODULES: dict[str, list[str]] = {  # what users train, by the family's own names
    "bert": ["query", "key", "value", "dense", "word_embeddings"],
    "xlm_roberta": ["query", "value"],
    "distilbert": ["q_lin", "k_lin", "v_lin", "out_lin", "lin1", "lin2"],
    "mpnet": ["q", "v", "o"],
    "modernbert": ["Wqkv", "Wo", "Wi"],
}


def opened(directory: Path) -> LLM:
    return LLM(str(directory), max_num_seqs=4, kv_cache_memory_bytes=1 << 22, enable_lora=True, max_loras=2)


def named(path: Path, number: int) -> LoRARequest:
    return LoRARequest(path.name, number, str(path))


def values(llm: LLM, params: PoolingParams, adapters: list[LoRARequest | None]) -> list[np.ndarray]:
    asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = llm.encode(asked, params, lora_request=adapters, use_tqdm=False)
    return [np.asarray(output.outputs.data) for output in outputs]


def encoder(kind: Any, directory: Path) -> Any:
    return kind.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager").eval()


@pytest.mark.parametrize("family", mostly_wide(list(MODULES), ["bert", "modernbert"]))
def test_each_text_has_its_adapter(family: str, tmp_path: Path) -> None:
    """Two adapters and none in one batch; PEFT computes each text with the adapter of its own."""
    directory, paths = make_encoder(family, tmp_path / "model"), [tmp_path / "one", tmp_path / "two"]
    config = {"r": 4, "lora_alpha": 8, "target_modules": MODULES[family]}
    adapted = [
        save_adapter(encoder(transformers.AutoModel, directory), path, seed, **config)
        for seed, path in enumerate(paths)
    ]
    one, two = named(paths[0], 1), named(paths[1], 2)
    with opened(directory) as llm:
        together = values(llm, TOKENS, [one, two, None, one])
        alone = values(llm, TOKENS, [one] * 4)
    plain = states_of(directory)
    for prompt, found, own in zip(PROMPTS, together, (*adapted, None, adapted[0]), strict=True):
        expected = plain(prompt)
        if own is not None:
            assert np.abs(found - expected).max() > 1e-2
            with torch.no_grad():
                expected = own(torch.tensor([prompt])).last_hidden_state[0].numpy()
        np.testing.assert_allclose(found, expected, atol=2e-5)
    np.testing.assert_array_equal(together[0], alone[0])
    np.testing.assert_array_equal(together[3], alone[3])


def test_merged_weights_give_the_same_scores(tmp_path: Path) -> None:
    """Of a classifier whose names begin with that of its model."""
    directory, path = make_encoder("bert", tmp_path / "model", "texts"), tmp_path / "adapter"
    kind = transformers.AutoModelForSequenceClassification
    adapted = save_adapter(encoder(kind, directory), path, r=4, lora_alpha=8, target_modules=["query", "value"])
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    with opened(directory) as llm:
        scores = values(llm, PoolingParams(task="classify", use_activation=False), [named(path, 1)] * 4)
    oracle = states_of(tmp_path / "merged", "texts")
    for prompt, score in zip(PROMPTS, scores, strict=True):
        np.testing.assert_allclose(score, oracle(prompt), atol=1e-5)


def test_a_head_of_an_adapter_is_refused(tmp_path: Path) -> None:
    directory, path = make_encoder("bert", tmp_path / "model", "texts"), tmp_path / "adapter"
    kind = transformers.AutoModelForSequenceClassification
    save_adapter(encoder(kind, directory), path, r=4, target_modules=["query"], modules_to_save=["classifier"])
    with opened(directory) as llm, pytest.raises(AdapterError, match="module 'classifier'"):
        values(llm, PoolingParams(task="classify"), [named(path, 1)] * 4)

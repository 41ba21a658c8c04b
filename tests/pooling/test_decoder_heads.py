"""Decoders with other heads than logits: what transformers' classes give, however they are run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.core.errors import CadenceError, ConfigError
from cadence.core.lora_request import LoRARequest
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.adapters import make_adapter
from tests.helpers.oracle import load_oracle
from tests.helpers.tiny_models import MAX_LEN, make_tiny
from tests.helpers.tiny_scorers import make_headed, make_reward

PROMPTS = [[5, 9, 200, 31], [7] * 3 + list(range(20, 90)), [8]]
AS_IDS = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
RAW = {"use_activation": False}

pytestmark = pytest.mark.engine


def values(directory: Path, params: PoolingParams | None = None, **options: Any) -> list[np.ndarray]:
    with LLM(str(directory), max_model_len=MAX_LEN, max_num_seqs=4, dtype="float32", **options) as llm:
        return [output.outputs.data for output in llm.encode(AS_IDS, params, use_tqdm=False)]


def close(found: list[np.ndarray], wanted: list[torch.Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other.numpy(), atol=1e-5)


@torch.inference_mode()
def logits(model: Any) -> list[torch.Tensor]:
    return [model(torch.tensor([prompt])).logits[0] for prompt in PROMPTS]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "gpt2", "opt_postnorm"])
def test_texts_are_classified(tmp_path: Path, family: str) -> None:
    model = make_headed(family, tmp_path, "AutoModelForSequenceClassification", num_labels=3)
    close(values(tmp_path), [torch.softmax(each, -1) for each in logits(model)])


@pytest.mark.parametrize("family", ["qwen2", "gpt2"])
def test_tokens_are_classified(tmp_path: Path, family: str) -> None:
    model = make_headed(family, tmp_path, "AutoModelForTokenClassification", num_labels=3)
    close(values(tmp_path, PoolingParams(**RAW)), logits(model))


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen3", "gemma3", "gpt2"])
def test_a_decoder_without_a_head_embeds(tmp_path: Path, family: str) -> None:
    model = make_headed(family, tmp_path, "AutoModel")
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in PROMPTS]
    close(values(tmp_path), [each / each.norm() for each in wanted])


def test_rewards_of_tokens_and_of_steps(tmp_path: Path) -> None:
    (tmp_path / "reward").mkdir()
    model = make_reward(tmp_path / "reward", "Qwen2ForRewardModel", labels=1)
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt]))[0] for prompt in PROMPTS]
    close(values(tmp_path / "reward", PoolingParams(task="reward", **RAW)), wanted)
    (tmp_path / "process").mkdir()
    model = make_reward(tmp_path / "process", "Qwen2ForProcessRewardModel", labels=2)
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt]))[0].softmax(-1) for prompt in PROMPTS]
    wanted = [each[torch.tensor(prompt) == 7] for prompt, each in zip(PROMPTS, wanted, strict=True)]
    assert [len(each) for each in wanted] == [0, 3, 0]
    close(values(tmp_path / "process", pooler_config={"pooling_type": "STEP", "step_tag_id": 7}), wanted)


def test_a_reranker_is_made_of_two_logits(tmp_path: Path) -> None:
    directory = make_tiny("qwen3", tmp_path)
    no, yes = (load_tokens(directory)[token] for token in ("n", "y"))
    overrides = {"architectures": ["Qwen3ForSequenceClassification"], "classifier_from_token": ["n", "y"]}
    found = values(directory, hf_overrides={**overrides, "is_original_qwen3_reranker": True})
    last = [each[-1] for each in logits(load_oracle(directory))]
    close(found, [torch.sigmoid(each[yes] - each[no])[None] for each in last])
    one_each = values(directory, PoolingParams(**RAW), hf_overrides={**overrides, "method": "no_post_processing"})
    close(one_each, [each[[no, yes]] for each in last])


def load_tokens(directory: Path) -> dict[str, int]:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(directory / "tokenizer.json")).get_vocab()


def test_a_generator_is_converted(tmp_path: Path) -> None:
    """Its own head is left out of an embedder, or scores tokens of the vocabulary."""
    directory = make_tiny("llama", tmp_path)
    plain, converted = values(directory), values(directory, convert="embed")
    assert all((one == other).all() for one, other in zip(plain, converted, strict=True))
    scores = values(directory, task="reward", pooler_config={"returned_token_ids": [5, 60], "step_tag_id": 7})
    wanted = [each[:, [5, 60]].softmax(-1) for each in logits(load_oracle(directory))]
    close(scores, [each[torch.tensor(prompt) == 7] for prompt, each in zip(PROMPTS, wanted, strict=True)])
    with pytest.raises(CadenceError, match=r"missing: score\.weight"):
        values(directory, convert="classify")
    with pytest.raises(ConfigError, match="returned_token_ids"):
        values(directory, convert="reward")


def test_an_adapter_changes_the_scores_of_its_request(tmp_path: Path) -> None:
    model = make_headed("llama", tmp_path, "AutoModelForSequenceClassification", num_labels=3)
    modules = ["q_proj", "v_proj", "down_proj"]
    adapted = make_adapter(tmp_path / "causal", tmp_path / "adapter", r=4, target_modules=modules).base_model.model
    request = LoRARequest("one", 1, str(tmp_path / "adapter"))
    options: dict[str, Any] = {"max_model_len": MAX_LEN, "dtype": "float32", "enable_lora": True, "max_lora_rank": 4}
    with LLM(str(tmp_path), **options) as llm:
        found = llm.encode([*AS_IDS, *AS_IDS], lora_request=[request] * 3 + [None] * 3, use_tqdm=False)
    base = adapted.model
    state = {name.removeprefix("base_layer."): value for name, value in model.model.state_dict().items()}
    names = {name: name.replace(".base_layer", "") for name in base.state_dict() if "lora_" not in name}
    base.load_state_dict({name: state[there] for name, there in names.items()}, strict=False)
    with torch.inference_mode():
        hidden = [base(torch.tensor([prompt])).last_hidden_state[0, -1] for prompt in PROMPTS]
        wanted = [torch.softmax(model.score(each), -1) for each in hidden]
    plain = [torch.softmax(each, -1) for each in logits(model)]
    assert not any(torch.allclose(one, other, atol=1e-3) for one, other in zip(wanted, plain, strict=True))
    close([output.outputs.data for output in found], [*wanted, *plain])


def test_quantised_scores_are_near(tmp_path: Path) -> None:
    model = make_headed("qwen2", tmp_path, "AutoModelForSequenceClassification", num_labels=3)
    for found, wanted in zip(values(tmp_path, PoolingParams(**RAW), quantization="int8"), logits(model), strict=True):
        error = np.abs(np.asarray(found) - wanted.numpy()).max()
        assert 0 < error < 0.2 * wanted.abs().max()


def test_a_gemma_that_sees_both_ways_embeds(tmp_path: Path) -> None:
    """As EmbeddingGemma: the window is one on either side."""
    model = make_headed("gemma3", tmp_path, "AutoModel", use_bidirectional_attention=True, sliding_window=9)
    assert json.loads((tmp_path / "config.json").read_text())["sliding_window"] == 16
    with torch.inference_mode():
        wanted = [model(torch.tensor([prompt])).last_hidden_state[0].mean(0) for prompt in PROMPTS]
    found = values(tmp_path)
    close(found, [each / each.norm() for each in wanted])
    with pytest.raises(ConfigError, match="generates no text"):
        values(tmp_path, runner="generate")

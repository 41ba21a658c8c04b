"""What a model's files say of its embeddings and scores, and what the user says over them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cadence.config.args import EngineArgs
from cadence.config.files.sentence_transformers import NO_MODULES, read_modules
from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.pooling import PoolingConfig, TextForm
from cadence.config.reference import ModelFiles
from cadence.config.resolve_pooling import resolve_pooling, served_as
from cadence.core.errors import ConfigError, InvalidRequestError, ModelFileError, WeightsError
from cadence.core.pooled.pooling import NONE, SIGMOID, SOFTMAX
from cadence.core.pooled.pooling_params import PoolingParams
from cadence.entrypoints.llm import LLM
from tests.helpers.oracle import load_oracle
from tests.helpers.tiny_encoders import make_encoder, states_of
from tests.helpers.tiny_gguf import make_tiny_gguf
from tests.helpers.tiny_models import MAX_LEN, make_tiny
from tests.helpers.tiny_scorers import add_modules

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "max_position_embeddings": 512, "vocab_size": 320}
MEAN = ("Pooling", {"word_embedding_dimension": 64, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False})
DENSE = (
    "Dense",
    {"in_features": 64, "out_features": 24, "bias": True, "activation_function": "torch.nn.modules.activation.GELU"},
)
SECOND = (
    "Dense",
    {"in_features": 24, "out_features": 8, "bias": False, "activation_function": "torch.nn.modules.activation.Tanh"},
)
NORMALIZE: tuple[str, dict[str, Any]] = ("Normalize", {})
TASKS = {"embed": ("embed", "token_embed"), "classify": ("classify", "token_classify"), "by token": ("token_classify",)}
FILES = ModelFiles("tiny", Path("/models/tiny"), None)


def described(directory: Path, architecture: str, **raw: Any) -> HFConfig:
    """A model of which there is the description alone."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({"architectures": [architecture], **SIZES, **raw}))
    return load_hf_config(ModelFiles("tiny", directory, None))


def pooling(hf: HFConfig, **options: Any) -> PoolingConfig:
    args = EngineArgs.from_options(**options)
    return resolve_pooling(args, served_as(hf, args))


@pytest.mark.parametrize(
    ("architecture", "generates", "tasks"),
    [
        ("LlamaForCausalLM", True, "embed"),
        ("Qwen3Model", False, "embed"),
        ("Gemma3TextModel", False, "embed"),
        ("MistralForSequenceClassification", False, "classify"),
        ("Qwen3ForTokenClassification", False, "by token"),
        ("Qwen2ForRewardModel", False, "by token"),
    ],
)
def test_an_architecture_says_what_there_is(tmp_path: Path, architecture: str, generates: bool, tasks: str) -> None:
    found = pooling(described(tmp_path, architecture))
    assert (found.generates, found.tasks) == (generates, TASKS[tasks])
    assert (found.embedding, found.normalize, found.sees_both_ways) == ("last", True, False)


def test_runner_convert_and_task(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    hf = described(tmp_path, "LlamaForCausalLM", num_labels=1)
    assert pooling(hf, runner="pooling").tasks == TASKS["embed"] and not pooling(hf, runner="pooling").generates
    assert pooling(hf, runner="generate").generates and pooling(hf, task="generate").generates
    assert not pooling(hf, convert="embed").generates
    assert not caplog.records
    assert pooling(hf, task="score").tasks == (*TASKS["classify"], "score")
    assert "task=score is taken to be runner=pooling, convert=classify" in caplog.text
    assert pooling(hf, pooler_config={"task": "classify"}).tasks[0] == "classify"
    assert pooling(hf, pooler_config={"task": "token_embed"}).tasks == ("token_embed", "embed")
    rewards = pooling(hf, task="reward", override_pooler_config={"returned_token_ids": [3, 4], "step_tag_id": 9})
    assert (rewards.tasks, rewards.by_token, rewards.returned) == (TASKS["by token"], "step", (3, 4))
    for options, field in (
        ({"task": "embed", "runner": "generate"}, "runner"),
        ({"convert": "classify", "runner": "generate"}, "convert"),
        ({"task": "dream"}, "task"),
    ):
        with pytest.raises(ConfigError) as caught:
            EngineArgs.from_options(**options)
        assert caught.value.field == field
    with pytest.raises(ConfigError, match="generates no text"):
        pooling(described(tmp_path, "LlamaModel"), runner="generate")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"task": "dream"}, "task='dream' is not one of auto"),
        ({"pooling_type": "MAX"}, "pooling_type='MAX' is not one of LAST, CLS, MEAN, ALL, STEP"),
        ({"seq_pooling_type": "ALL"}, "seq_pooling_type"),
        ({"poling_type": "CLS"}, "did you mean pooling_type"),
        ({"dimensions": 0}, "dimensions=0 must be at least 1"),
        ({"use_activation": "perhaps"}, "use_activation"),
        ({"enable_chunked_processing": True}, "cannot be honoured"),
    ],
)
def test_pooler_config_is_checked_when_it_is_given(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        EngineArgs.from_options(pooler_config=given)


def test_pooler_config_is_over_the_files(tmp_path: Path) -> None:
    hf = described(tmp_path, "LlamaForCausalLM")
    found = pooling(hf, pooler_config='{"pooling_type": "MEAN", "normalize": false}')
    assert (found.embedding, found.normalize) == ("mean", False)
    scores = pooling(described(tmp_path, "LlamaForSequenceClassification"), pooler_config={"softmax": False})
    assert scores.spec(PoolingParams()).activation == NONE
    assert scores.spec(PoolingParams(use_activation=True)).activation == SOFTMAX


def test_dimensions_of_a_matryoshka_model(tmp_path: Path) -> None:
    listed = pooling(described(tmp_path, "Qwen3Model", is_matryoshka=True, matryoshka_dimensions=[64, 32, 8]))
    free = pooling(described(tmp_path, "Qwen3Model", is_matryoshka=True))
    plain = pooling(described(tmp_path, "Qwen3Model"))
    for config, allowed in ((listed, {8, 32, 64}), (free, {1, 8, 31, 32, 63, 64}), (plain, {64})):
        for size in (1, 8, 31, 32, 63, 64, 65):
            if size in allowed:
                assert config.spec(PoolingParams(dimensions=size)).dimensions == size % 64
            else:
                with pytest.raises(InvalidRequestError, match="64 entries") as caught:
                    config.spec(PoolingParams(dimensions=size))
                assert caught.value.field == "dimensions"
    described(tmp_path, "Qwen3Model", is_matryoshka=True)
    assert pooling(load_hf_config(ModelFiles("t", tmp_path, None)), pooler_config={"dimensions": 16}).cut == 16
    with pytest.raises(ConfigError, match="dimensions=16"):
        pooling(described(tmp_path, "Qwen3Model"), pooler_config={"dimensions": 16})


def test_labels_and_activations(tmp_path: Path) -> None:
    def found(**raw: Any) -> PoolingConfig:
        return pooling(described(tmp_path, "LlamaForSequenceClassification", **raw))

    assert found(id2label={"1": "good", "0": "bad"}).labels == ("bad", "good")
    assert found(num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert found().labels == ("LABEL_0", "LABEL_1") and found().activation == SOFTMAX
    one = found(num_labels=1)
    assert (one.activation, one.score_activation, "score" in one.tasks) == (SIGMOID, SIGMOID, True)
    assert found(problem_type="regression").activation == NONE
    assert found(problem_type="multi_label_classification").activation == SIGMOID
    cross = found(num_labels=1, sentence_transformers={"activation_fn": "torch.nn.modules.linear.Identity"})
    assert cross.spec(PoolingParams(task="score")).activation == NONE
    assert cross.spec(PoolingParams(task="classify")).activation == SIGMOID
    with pytest.raises(ModelFileError, match="activation_fn"):
        found(num_labels=1, sbert_ce_default_activation_function="os.system")


def test_files_of_sentence_transformers(tmp_path: Path) -> None:
    assert read_modules(tmp_path) is NO_MODULES
    add_modules(tmp_path, MEAN, DENSE, NORMALIZE)
    prompts = {"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": "query"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps({**prompts, "similarity_fn_name": "dot"}))
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": false}')
    hf = described(tmp_path, "Qwen3ForCausalLM")
    found = pooling(hf)
    assert (found.generates, found.embedding, found.normalize, found.size) == (False, "mean", True, 24)
    assert (found.default_prompt, found.similarity) == ("query: ", "dot")
    assert dict(found.prompts)["document"] == "" and hf.sentence.max_length == 128
    assert not found.lower_case
    (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": true}')
    assert pooling(described(tmp_path, "Qwen3ForCausalLM")).form("query") == TextForm("query: ", lower_case=True)
    assert pooling(hf, runner="generate").generates
    newer = tmp_path / "newer"
    add_modules(newer, ("Pooling", {"embedding_dimension": 64, "pooling_mode": "lasttoken"}))
    assert (read_modules(newer).pooling, read_modules(newer).normalize) == ("last", False)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", "{}", "expected a JSON list"),
        ("modules.json", "[[]]", "modules of type '' are not read"),
        ("modules.json", '[{"type": "a.Pooling", "path": "../elsewhere"}]', "'path' must be the name of a folder"),
        ("modules.json", '[{"type": "a.Pooling", "path": ".."}]', "'path' must be the name of a folder"),
        ("modules.json", '[{"type": "a.WeightedLayerPooling"}]', "'WeightedLayerPooling' are not read"),
        ("modules.json", '[{"type": "a.Normalize"}]', "no module of type Pooling"),
        ("modules.json", "[" + ",".join(["{}"] * 99) + "]", "99 modules"),
        ("1_Pooling/config.json", '{"pooling_mode_max_tokens": true}', "'pooling_mode' must be one of"),
        ("1_Pooling/config.json", '{"pooling_mode": ["mean", "cls"]}', "'pooling_mode' must be one of"),
        ("1_Pooling/config.json", '{"pooling_mode": [{}]}', "'pooling_mode' must be one of"),
        ("2_Dense/config.json", '{"out_features": 8}', "'in_features' must be"),
        ("2_Dense/config.json", '{"in_features": 1e99, "out_features": 8}', "'in_features' must be"),
        ("2_Dense/config.json", '{"in_features": 64, "out_features": 8, "activation_function": "os.system"}', "Tanh"),
        ("config_sentence_transformers.json", '{"prompts": {"a": 1}}', "'prompts.a' must be a text"),
        ("config_sentence_transformers.json", '{"default_prompt_name": "a"}', "must be one of the prompts"),
        ("sentence_bert_config.json", '{"max_seq_length": -4}', "'max_seq_length' must be"),
    ],
)
def test_what_files_must_not_say(tmp_path: Path, file: str, content: str, message: str) -> None:
    add_modules(tmp_path, MEAN, DENSE, NORMALIZE)
    (tmp_path / file).write_text(content)
    with pytest.raises(ModelFileError, match=message) as caught:
        read_modules(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / file))


@pytest.mark.engine
def test_dense_modules_follow_the_mean(tmp_path: Path) -> None:
    """In sentence-transformers' order: the model, the mean, two linear maps, length 1."""
    from safetensors.torch import load_file

    directory = make_tiny("qwen3", tmp_path)
    add_modules(directory, MEAN, DENSE, SECOND, NORMALIZE)
    prompts = [[5, 9, 200, 31], list(range(20, 60)), [8]]
    with LLM(str(directory), max_model_len=MAX_LEN, max_num_batched_tokens=16, dtype="float32") as llm:
        as_ids = [{"prompt_token_ids": prompt} for prompt in prompts]
        found = [output.outputs.data for output in llm.encode(as_ids, use_tqdm=False)]
        by_token = llm.encode(as_ids[:1], PoolingParams(task="token_embed", normalize=False), use_tqdm=False)
    first, second = (load_file(directory / folder / "model.safetensors") for folder in ("2_Dense", "3_Dense"))

    def mapped(x: torch.Tensor) -> torch.Tensor:
        x = torch.nn.functional.gelu(x @ first["linear.weight"].T + first["linear.bias"])
        return torch.tanh(x @ second["linear.weight"].T)

    for prompt, vector in zip(prompts, found, strict=True):
        with torch.inference_mode():
            hidden = load_oracle(directory)(torch.tensor([prompt]), output_hidden_states=True).hidden_states[-1][0]
        wanted = torch.nn.functional.normalize(mapped(hidden.mean(0)), dim=-1)
        np.testing.assert_allclose(vector, wanted.numpy(), atol=1e-5)
        if prompt == prompts[0]:
            np.testing.assert_allclose(by_token[0].outputs.data, mapped(hidden).numpy(), atol=1e-5)


@pytest.mark.engine
def test_dense_modules_follow_an_encoder(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    directory = make_encoder("bert", tmp_path)
    size = {"in_features": 48, "out_features": 16, "activation_function": "torch.nn.modules.linear.Identity"}
    add_modules(directory, ("Pooling", {"pooling_mode_cls_token": True}), ("Dense", size))
    prompt = [5, 9, 200, 31]
    with LLM(str(directory), dtype="float32") as llm:
        found = llm.encode([{"prompt_token_ids": prompt}], use_tqdm=False)[0].outputs.data
    weights = load_file(directory / "2_Dense" / "model.safetensors")
    wanted = weights["linear.weight"].numpy() @ states_of(directory)(prompt)[0] + weights["linear.bias"].numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)


@pytest.mark.engine
def test_dense_modules_that_do_not_fit(tmp_path: Path) -> None:
    directory = make_tiny("qwen3", tmp_path)
    add_modules(directory, MEAN, ("Dense", {"in_features": 63, "out_features": 8}))
    with pytest.raises(ModelFileError, match="2_Dense: in_features is 63, and vectors before it have 64"):
        LLM(str(directory), max_model_len=MAX_LEN)


@pytest.mark.engine
def test_a_gguf_file_says_how_it_is_pooled(tmp_path: Path) -> None:
    made, plain = make_tiny_gguf(tmp_path / "mean.gguf", "Q8_0", pooling=1), make_tiny_gguf(tmp_path / "p.gguf", "Q8_0")
    asked = [{"prompt_token_ids": [5, 9, 200, 31]}]
    with LLM(str(made), max_model_len=64, dtype="float32") as llm:
        assert not llm.llm_engine.config.pooling.generates
        found = llm.encode(asked, use_tqdm=False)[0].outputs.data
    with LLM(str(plain), max_model_len=64, dtype="float32") as llm:
        assert llm.llm_engine.config.pooling.generates
        hidden = llm.encode(asked, PoolingParams(task="token_embed", normalize=False), use_tqdm=False)[0].outputs.data
    wanted = hidden.mean(axis=0)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted), atol=1e-5)
    with pytest.raises(WeightsError, match="pooling_type must be 0 to 3"):
        load_hf_config(ModelFiles("t", tmp_path, make_tiny_gguf(tmp_path / "rank.gguf", "Q8_0", pooling=4)))

"""A model that is not supported is named with its relatives, not with what is spelt alike."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cadence.config.args import EngineArgs
from cadence.core.errors import ModelFileError
from cadence.core.model.architectures import ARCHITECTURES, UNSUPPORTED, unsupported
from cadence.engine.source import find_source


@pytest.mark.parametrize(
    ("architecture", "family"),
    [
        ("Mistral3ForConditionalGeneration", "closest: MistralForCausalLM"),
        ("Qwen2MoeForCausalLM", "closest: Qwen2ForCausalLM and Qwen3ForCausalLM"),
        ("Qwen2_5_VLForConditionalGeneration", "Qwen with images or sound"),
        ("Qwen2VLForConditionalGeneration", "Qwen with images or sound"),
        ("Gemma3nForConditionalGeneration", "Gemma2ForCausalLM and Gemma3ForCausalLM"),
        ("PhiMoEForCausalLM", "Phi3ForCausalLM"),
        ("GPTNeoForCausalLM", "GPT2LMHeadModel and OPTForCausalLM"),
        ("GptOssForCausalLM", "nothing related is supported"),
        ("Zamba2ForCausalLM", "states of another form; closest: Mamba2ForCausalLM"),
        ("Lfm2MoeForCausalLM", "closest: Lfm2ForCausalLM"),
        ("GPTBigCodeForCausalLM", "a descendant of GPT"),
        ("DeepseekV3ForCausalLM", "LlamaForCausalLM"),
        ("MllamaForConditionalGeneration", "LlamaForCausalLM"),
        ("OlmoForCausalLM", "LlamaForCausalLM"),
        ("ArceeForCausalLM", "LlamaForCausalLM"),
        ("LEDForConditionalGeneration", "an encoder of another form; closest: BartForConditionalGeneration"),
        ("DebertaV2ForSequenceClassification", "an encoder of another form; closest: BertModel"),
        ("XLMWithLMHeadModel", "an encoder of another form; closest: BertModel"),
        ("qwen3moe", "Qwen3ForCausalLM"),
        ("starcoder", "GPT2LMHeadModel"),
    ],
)
def test_relatives(architecture: str, family: str) -> None:
    said = unsupported(architecture)
    assert said.startswith(f"architecture {architecture!r} is not supported (") and family in said


def test_an_unknown_name_gets_the_list_alone_where_it_is_short() -> None:
    said = "architecture 'XyzzyForCausalLM' is not supported; "
    assert unsupported("XyzzyForCausalLM") == said + "`cadence models` lists those that are"
    assert unsupported("XyzzyForCausalLM", ["b", "a"]) == said + "supported: a, b"
    assert all(relative in ARCHITECTURES for family in UNSUPPORTED for relative in family.relatives)


def test_it_is_said_of_the_file_before_a_device_is_looked_for(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["Mistral3ForConditionalGeneration"]}))
    with pytest.raises(ModelFileError, match=r"config.json: architecture 'Mistral3For.*closest: MistralForCausalLM"):
        find_source(EngineArgs(model=str(tmp_path)))


def test_code_and_quantised_weights_are_told_apart(tmp_path: Path) -> None:
    config = {"architectures": ["XyzzyForCausalLM"], "auto_map": {"AutoModelForCausalLM": "modeling.Xyzzy"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelFileError, match=r"'XyzzyForCausalLM' comes with code .* runs with trust_remote_code alone"
    ):
        find_source(EngineArgs(model=str(tmp_path)))
    config = {"architectures": ["LlamaForCausalLM"], "quantization_config": {"quant_method": "hqq", "bits": 4}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelFileError, match=r"config.json: its weights are quantised by 'hqq', which is not read here"
    ):
        find_source(EngineArgs(model=str(tmp_path)))
    find_source(EngineArgs(model=str(tmp_path), hf_overrides={"quantization_config": None}))

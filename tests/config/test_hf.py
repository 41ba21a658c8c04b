"""Reading config.json: both spellings of rope agree, overrides win, end tokens are joined, errors name the file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from cadence.config.hf import HFConfig, load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError

BASE = {"architectures": ["LlamaForCausalLM"], "hidden_size": 8}


def load(
    folder: Path, config: Any, generation: Any = None, overrides: Mapping[str, Any] = MappingProxyType({})
) -> HFConfig:
    (folder / "config.json").write_text(config if isinstance(config, str) else json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return load_hf_config(ModelFiles("m", folder, None), overrides)


def test_keys_defaults_and_missing_keys(tmp_path: Path) -> None:
    hf = load(tmp_path, BASE)
    assert (hf.architecture, hf["hidden_size"], hf.get("other", 3), hf.generation) == ("LlamaForCausalLM", 8, 3, {})
    with pytest.raises(ConfigError, match=r"config\.json: missing 'vocab_size'") as caught:
        hf["vocab_size"]
    assert caught.value.field == "vocab_size"


def test_end_tokens_are_joined_in_order(tmp_path: Path) -> None:
    hf = load(tmp_path, BASE | {"eos_token_id": 7}, {"eos_token_id": [5, 7], "temperature": 0.6})
    assert hf.eos_token_ids == (7, 5)
    assert hf.generation["temperature"] == 0.6
    (tmp_path / "generation_config.json").unlink()
    hf = load(tmp_path, BASE | {"eos_token_id": None})
    assert hf.eos_token_ids == ()


def test_newer_rope_spelling_gives_the_older(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 5e5, "partial_rotary_factor": 0.5}
    hf = load(tmp_path, BASE | {"rope_parameters": rope})
    assert (hf["rope_theta"], hf["partial_rotary_factor"]) == (5e5, 0.5)
    assert hf["rope_scaling"] == {"rope_type": "yarn", "factor": 2.0}
    assert hf["rope_parameters"] == rope


def test_older_rope_spelling_gives_the_newer(tmp_path: Path) -> None:
    hf = load(tmp_path, BASE | {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 4.0}})
    expected = {"rope_type": "linear", "type": "linear", "factor": 4.0, "rope_theta": 1e4}
    assert hf["rope_parameters"] == expected
    plain = load(tmp_path, BASE | {"rope_theta": 1e4, "rope_scaling": None})
    assert plain["rope_parameters"] == {"rope_type": "default", "rope_theta": 1e4}
    assert "rope_parameters" not in load(tmp_path, BASE).raw


def test_what_transformers_saves_for_gemma3_reads_as_its_older_files(tmp_path: Path) -> None:
    from transformers import Gemma3TextConfig

    config = Gemma3TextConfig(architectures=["Gemma3ForCausalLM"])
    config.save_pretrained(tmp_path)
    hf = load_hf_config(ModelFiles("m", tmp_path, None))
    assert (hf["rope_theta"], hf["rope_local_base_freq"], hf["rope_scaling"]) == (1e6, 1e4, None)
    older = {key: hf[key] for key in ("rope_theta", "rope_local_base_freq", "rope_scaling")}
    assert load(tmp_path, BASE | older)["rope_parameters"] == config.rope_parameters


def test_overrides_win_key_by_key_and_ropes_whole(tmp_path: Path) -> None:
    llama3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0}
    config = BASE | {"rope_theta": 5e5, "rope_scaling": llama3, "text_config": {"a": 1, "b": 2}}
    overrides = {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}, "text_config": {"b": 3}, "vocab_size": 9}
    hf = load(tmp_path, config, overrides=overrides)
    assert hf["rope_scaling"] == {"rope_type": "yarn", "factor": 4.0}
    assert hf["rope_parameters"] == {"rope_type": "yarn", "factor": 4.0, "rope_theta": 5e5}
    assert (hf["text_config"], hf["vocab_size"]) == ({"a": 1, "b": 3}, 9)
    newer = load(tmp_path, BASE | {"rope_parameters": {"rope_theta": 5e5, **llama3}}, overrides={"rope_theta": 1.0})
    assert newer["rope_theta"] == newer["rope_parameters"]["rope_theta"] == 1.0
    assert newer["rope_scaling"] == llama3


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", "not readable as JSON"),
        ("[1]", "expected a JSON object"),
        ({"hidden_size": 8}, "'architectures' must be a list that names"),
        (BASE | {"architectures": []}, "'architectures' must be a list that names"),
        (BASE | {"eos_token_id": "</s>"}, "'eos_token_id' must be a whole number"),
        (BASE | {"rope_scaling": "yarn"}, "'rope_scaling' must be an object"),
    ],
)
def test_bad_files_are_config_errors(tmp_path: Path, config: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, config)


def test_missing_and_binary_files_are_config_errors(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_hf_config(ModelFiles("m", tmp_path, None))
    (tmp_path / "config.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not readable as JSON"):
        load_hf_config(ModelFiles("m", tmp_path, None))

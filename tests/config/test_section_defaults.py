"""What sections of a configuration leave out is what transformers takes in its place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadence.config.hf import HFConfig, make_hf_config
from cadence.core.errors import ModelFileError

PATH = Path("config.json")


def read(architecture: str, **raw: Any) -> HFConfig:
    return make_hf_config("m", PATH, {"architectures": [architecture], **raw}, {})


def check_section(ours: dict[str, Any], theirs: Any) -> None:
    assert ours["model_type"] in (theirs.model_type, "idefics3_vision")  # SmolVLM's has a name of its own
    for name, value in ours.items():
        if name not in ("model_type", "num_key_value_heads", "head_dim"):  # which transformers derives where null
            assert getattr(theirs, name) == value, name


@pytest.mark.parametrize(
    ("name", "text", "vision"),
    [
        ("Llava", {}, {}),
        ("Llava", None, None),
        ("Llava", {"model_type": "qwen2", "hidden_size": 64}, {"model_type": "siglip_vision_model", "patch_size": 14}),
        ("LlavaNext", {"model_type": "mistral", "sliding_window": None}, {"image_size": 336}),
        ("LlavaNext", {"model_type": "llama", "vocab_size": 32_064}, None),
        ("Idefics3", {"model_type": "llama", "rope_theta": 100_000.0}, {"model_type": "idefics3", "patch_size": 14}),
        ("SmolVLM", None, {"image_size": 512}),
        ("Gemma3", {"model_type": "gemma3_text", "hidden_size": 2560}, {"model_type": "siglip_vision_model"}),
        ("Gemma3", {}, {"vision_use_head": False}),
    ],
)
def test_defaults_are_those_of_transformers(name: str, text: Any, vision: Any) -> None:
    import transformers

    sections = {"text_config": text, "vision_config": vision}
    told = getattr(transformers, f"{name}Config")(**json.loads(json.dumps(sections)))
    ours = read(f"{name}ForConditionalGeneration", **sections)
    check_section({key: value for key, value in ours["text_config"].items() if "rope" not in key}, told.text_config)
    check_section(ours["vision_config"], told.vision_config)
    assert ours["hidden_size"] == told.text_config.hidden_size
    if name == "LlavaNext":
        assert ours["image_grid_pinpoints"] == told.image_grid_pinpoints


def test_sizes_of_the_text_are_those_of_its_section() -> None:
    """Old files have others outside, which nothing uses."""
    ours = read("LlavaForConditionalGeneration", vocab_size=32_000, text_config={"vocab_size": 32_064})
    assert ours["vocab_size"] == 32_064


def test_a_model_without_a_tower_has_no_section_of_one() -> None:
    assert read("Gemma3ForConditionalGeneration", text_config={}).get("vision_config") is None
    assert read("LlamaForCausalLM", hidden_size=64).get("text_config") is None


@pytest.mark.parametrize("section", ["text_config", "vision_config"])
@pytest.mark.parametrize("value", [[], "text", 3])
def test_sections_are_objects(section: str, value: Any) -> None:
    with pytest.raises(ModelFileError, match=rf"config\.json: '{section}' must be an object"):
        read("LlavaForConditionalGeneration", **{section: value})

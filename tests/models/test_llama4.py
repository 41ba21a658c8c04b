"""Llama 4: what its configuration says of layers, and its text inside a model that sees."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.core.errors import ConfigError
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.layers.shared_experts import SharedExperts
from cadence.models.layers.tempered_attention import TemperedAttention
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import load_oracle, logprobs
from tests.helpers.tiny_models import VOCAB, randomise
from tests.helpers.tiny_sizes import CHUNK, decoder_sizes

pytestmark = pytest.mark.device


def tokens(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.fixture
def changed(tiny_model: Callable[[str], Path], tmp_path: Path) -> Callable[..., Any]:
    """The model, without weights, of a configuration some of whose fields have other values, or are left out."""
    config = json.loads((tiny_model("llama4") / "config.json").read_text())

    def build(max_model_len: int = 400, left_out: tuple[str, ...] = (), **changes: Any) -> Any:
        told = {key: value for key, value in (config | changes).items() if key not in left_out}
        (tmp_path / "config.json").write_text(json.dumps(told))
        return load(tmp_path, fmt="dummy", max_model_len=max_model_len)

    return build


def chunks(model: Any) -> list[int]:
    return [layer.chunk for layer in model.kv_layers()]


def test_layers_that_rotate_have_chunks_unless_the_file_says_which(changed: Callable[..., Any]) -> None:
    model = changed()
    assert chunks(model) == [CHUNK, CHUNK, CHUNK, 0, CHUNK]
    assert [isinstance(layer.attn.rotary, Rotary) for layer in model.layers] == [True, True, True, False, True]
    assert [isinstance(layer.attn, TemperedAttention) for layer in model.layers] == [False, False, False, True, False]
    unsaid = ("no_rope_layers", "layer_types")
    assert chunks(changed(left_out=unsaid)) == chunks(model)
    assert chunks(changed(left_out=unsaid, no_rope_layer_interval=2)) == [CHUNK, 0, CHUNK, 0, CHUNK]
    assert chunks(changed(left_out=("layer_types",), no_rope_layers=[])) == chunks(model)
    assert chunks(changed(left_out=("layer_types",), no_rope_layers=[0, 1, 1, 1, 0])) == [0, CHUNK, CHUNK, CHUNK, 0]
    apart = changed(layer_types=["full_attention"] * 4 + ["chunked_attention"])
    assert chunks(apart) == [0, 0, 0, 0, CHUNK] and isinstance(apart.layers[0].attn.rotary, Rotary)
    assert chunks(changed(max_model_len=CHUNK)) == [0] * 5, "no sequence outgrows the chunk"
    assert chunks(changed(attention_chunk_size=None)) == [0] * 5


def test_experts_are_in_layers_of_the_step_unless_the_file_says_which(changed: Callable[..., Any]) -> None:
    def routed(**changes: Any) -> list[bool]:
        return [isinstance(layer.mlp, SharedExperts) for layer in changed(**changes).layers]

    assert routed(moe_layers=None, interleave_moe_layer_step=2) == [False, True, False, True, False]
    assert routed(moe_layers=[0, 4]) == [True, False, False, False, True]
    assert routed(moe_layers=[]) == [False] * 5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts_per_tok": 2}, "each token takes 2 experts, whose inputs are weighed: one is supported"),
        ({"no_rope_layers": [1, 1, 1, 0]}, "no_rope_layers names 4 layers where num_hidden_layers is 5"),
        ({"layer_types": ["sliding_attention"] * 5}, "layer types .'sliding_attention'. are not supported"),
    ],
)
def test_what_is_not_supported_is_refused(changed: Callable[..., Any], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(**changes)


def test_left_out_settings_are_those_of_transformers(tmp_path: Path) -> None:
    from transformers import Llama4ForCausalLM, Llama4TextConfig

    sizes = decoder_sizes(num_attention_heads=8, hidden_size=32, intermediate_size=24, num_hidden_layers=4)
    del sizes["num_key_value_heads"]
    model = Llama4ForCausalLM(Llama4TextConfig(**sizes, intermediate_size_mlp=16, floor_scale=20)).eval()
    randomise(model, 0.15, 0.08)
    model.save_pretrained(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())
    kept = ("architectures", "model_type", "vocab_size", "max_position_embeddings", "floor_scale", "num_hidden_layers",
            "hidden_size", "intermediate_size", "num_attention_heads", "intermediate_size_mlp")  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps({key: told[key] for key in kept}))
    ids = tokens(60)
    close(OneSequence(load(tmp_path)).feed(ids), logprobs(load_oracle(tmp_path), ids))


def test_a_factor_on_the_rotation_is_undone_by_the_norm_after_it(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    """YaRN has one; a model without norms keeps it."""
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 128}
    for family in ("llama4", "llama4_in_turn"):
        directory, ids = tiny_model(family), tokens(100)
        config = json.loads((directory / "config.json").read_text()) | {"rope_parameters": rope}
        (tmp_path / family).mkdir()
        (tmp_path / family / "config.json").write_text(json.dumps(config))
        (tmp_path / family / "model.safetensors").symlink_to(directory / "model.safetensors")
        close(OneSequence(load(tmp_path / family)).feed(ids), logprobs(load_oracle(tmp_path / family), ids))


def test_text_of_a_model_that_sees(tmp_path: Path) -> None:
    from transformers import Llama4Config, Llama4ForConditionalGeneration

    text = decoder_sizes(head_dim=24, attention_chunk_size=CHUNK, floor_scale=20, intermediate_size_mlp=80)
    vision = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128,
              "vision_output_dim": 16, "image_size": 28, "projector_input_dim": 16,
              "projector_output_dim": 16}  # fmt: skip
    model = Llama4ForConditionalGeneration(Llama4Config(text_config=text, vision_config=vision)).eval()
    randomise(model, 0.15, 0.08)
    model.save_pretrained(tmp_path)
    ids = tokens(90)
    with torch.no_grad():
        theirs = model(input_ids=torch.tensor([ids])).logits[0].log_softmax(dim=-1)
    close(OneSequence(load(tmp_path)).feed(ids), theirs)

"""Every family computes what transformers computes, whole or in pieces, through a paged cache."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.core.errors import ConfigError
from cadence.core.model.architectures import ARCHITECTURES
from cadence.models.layers.positions.rotary import Rotary
from cadence.models.registry import model_class
from tests.helpers.one_sequence import OneSequence, load
from tests.helpers.oracle import load_oracle, logprobs
from tests.helpers.tiny_models import FAMILIES, MAX_LEN, USUAL, VOCAB, WINDOW
from tests.helpers.wide import mostly_wide

pytestmark = pytest.mark.device


def tokens(count: int) -> list[int]:
    return torch.randint(3, VOCAB, (count,), generator=torch.Generator().manual_seed(count)).tolist()


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, USUAL))
def test_equals_transformers_whole_and_in_pieces(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory = tiny_model(family)
    model, oracle = load(directory), load_oracle(directory)
    for length in (1, 17, 300):
        ids = tokens(length)
        theirs = logprobs(oracle, ids)
        close(OneSequence(model).feed(ids), theirs)
    pieces = OneSequence(model)
    sizes = [70, 1, 129, 92] + [1] * 8
    assert sum(sizes) == 300
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    ours = torch.cat([pieces.feed(ids[start : start + size]) for start, size in zip(starts, sizes)])
    close(ours, theirs)
    last = OneSequence(model)
    found = torch.cat([last.feed(ids[:170], last_only=True), last.feed(ids[170:], last_only=True)])
    close(found, theirs[[169, 299]])
    assert theirs.argmax(dim=-1).unique().numel() > 30, "a tiny model that says the same thing everywhere proves little"


@pytest.mark.parametrize("family", ["llama_dynamic", "phi3_longrope"])
def test_lengths_past_the_original_are_rotated_for_max_model_len(
    family: str, tiny_model: Callable[[str], Path]
) -> None:
    """transformers rotates by the length at hand; at exactly max_model_len both agree, chunked or not."""
    longer = MAX_LEN + 40
    directory = tiny_model(family)
    model, ids = load(directory, max_model_len=longer), tokens(longer)
    theirs = logprobs(load_oracle(directory), ids)
    close(OneSequence(model, longer).feed(ids), theirs)
    pieces = OneSequence(model, longer)
    close(torch.cat([pieces.feed(ids[:200]), pieces.feed(ids[200:])]), theirs)


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_bfloat16_stays_near_float32(family: str, tiny_model: Callable[[str], Path]) -> None:
    directory, ids = tiny_model(family), tokens(40)
    exact = OneSequence(load(directory)).feed(ids)
    half = OneSequence(load(directory, dtype="bfloat16"), dtype=torch.bfloat16).feed(ids)
    assert (exact - half).abs().mean() < 0.15
    assert (exact.argmax(-1) == half.argmax(-1)).float().mean() > 0.7


def test_windows_are_those_of_the_configuration(tiny_model: Callable[[str], Path]) -> None:
    def windows(family: str, **options: Any) -> list[int]:
        return [layer.window for layer in load(tiny_model(family), **options).kv_layers()]

    assert windows("llama") == [0, 0, 0, 0]
    assert windows("mistral") == [WINDOW] * 4
    assert windows("qwen2") == [0, 0, WINDOW, WINDOW]
    assert windows("smollm3") == [0] * 4
    assert windows("smollm3_window") == [WINDOW, 0, 0, WINDOW]
    assert windows("gemma2") == [WINDOW, 0, WINDOW, 0]
    assert windows("gemma3") == [WINDOW, WINDOW, 0, WINDOW]
    assert windows("mistral", max_model_len=WINDOW) == [0] * 4, "no sequence outgrows the window"


def test_layers_share_one_rotary_table(tiny_model: Callable[[str], Path]) -> None:
    llama, gemma3 = load(tiny_model("llama")), load(tiny_model("gemma3"))
    assert len({layer.attn.rotary.cos_sin.data_ptr() for layer in llama.layers}) == 1
    assert len({layer.attn.rotary.cos_sin.data_ptr() for layer in gemma3.layers}) == 2


def test_smollm3_rotates_all_but_every_fourth_layer_unless_told_which(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    def rotates(**changes: Any) -> list[bool]:
        (tmp_path / "config.json").write_text(json.dumps(config | changes))
        return [isinstance(layer.attn.rotary, Rotary) for layer in load(tmp_path, fmt="dummy").layers]

    config = json.loads((tiny_model("smollm3") / "config.json").read_text())
    assert config.pop("no_rope_layers") == [1, 1, 1, 0]
    assert rotates() == [True, True, True, False]
    assert rotates(no_rope_layer_interval=2) == [True, False, True, False]
    assert rotates(no_rope_layers=[0, 1, 1, 1, 0]) == [False, True, True, True]
    with pytest.raises(ConfigError, match="no_rope_layers names 3 layers where num_hidden_layers is 4"):
        rotates(no_rope_layers=[0, 1, 1])


def test_smollm3_left_out_settings_are_those_of_transformers(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    directory, ids = tiny_model("smollm3"), tokens(60)
    config = json.loads((directory / "config.json").read_text())
    for name in ("rope_parameters", "tie_word_embeddings", "no_rope_layers", "layer_types", "rms_norm_eps"):
        del config[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors").symlink_to(directory / "model.safetensors")
    close(OneSequence(load(tmp_path)).feed(ids), logprobs(load_oracle(tmp_path), ids))


def test_codegen_has_heads_in_quarters_and_old_files_a_mask(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory, ids = tiny_model("codegen"), tokens(60)
    config = json.loads((directory / "config.json").read_text())
    left_out = ("n_inner", "activation_function", "layer_norm_epsilon", "tie_word_embeddings")
    (tmp_path / "config.json").write_text(json.dumps({key: config[key] for key in config if key not in left_out}))
    mask = {"transformer.h.0.attn.causal_mask": torch.ones(1, 1, 4, 4, dtype=torch.uint8)}
    save_file(load_file(directory / "model.safetensors") | mask, tmp_path / "model.safetensors")
    close(OneSequence(load(tmp_path)).feed(ids), logprobs(load_oracle(directory), ids))
    (tmp_path / "config.json").write_text(json.dumps(config | {"n_head": 2}))
    with pytest.raises(ConfigError, match="n_head must be a multiple of 4, found 2"):
        load(tmp_path, fmt="dummy")


def test_tied_embeddings_share_storage(tiny_model: Callable[[str], Path]) -> None:
    tied, apart = load(tiny_model("qwen3")), load(tiny_model("llama"))
    assert tied.lm_head.weight is tied.embed.weight
    assert apart.lm_head.weight.values.data_ptr() != apart.embed.weight.values.data_ptr()


def test_gemma3_text_inside_the_image_model(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    directory = tiny_model("gemma3")
    held = {f"language_model.{name}": value for name, value in load_file(directory / "model.safetensors").items()}
    save_file(held | {"vision_tower.vision_model.weight": torch.ones(3)}, tmp_path / "model.safetensors")
    text = json.loads((directory / "config.json").read_text())
    outer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": text}
    (tmp_path / "config.json").write_text(json.dumps(outer))
    ids = tokens(60)
    close(OneSequence(load(tmp_path)).feed(ids), OneSequence(load(directory)).feed(ids))


def test_unknown_architecture_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"LlamaForCausalLm.*closest: LlamaForCausalLM"):
        model_class("LlamaForCausalLm")
    named = {name: where.partition(":")[2] or name for name, where in ARCHITECTURES.items()}
    assert {name: model_class(name).__name__ for name in ARCHITECTURES} == named


@pytest.mark.parametrize("family", ["gpt2", "opt"])
def test_more_positions_than_learned_are_refused(family: str, tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="max_model_len 513"):
        load(tiny_model(family), max_model_len=MAX_LEN + 1)


def test_unknown_activation_is_refused(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    config = json.loads((tiny_model("llama") / "config.json").read_text()) | {"hidden_act": "mish"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="mish"):
        load(tmp_path, fmt="dummy")

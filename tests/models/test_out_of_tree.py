"""Models whose classes are not in this package: registered by a program, named by an option, or by an installed one."""

from __future__ import annotations

import json
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from cadence import LLM, ModelRegistry, SamplingParams, vllm
from cadence.core.errors import ConfigError, ModelFileError
from cadence.core.model import model_registry
from cadence.core.model.model_heads import MODEL_CLASSES
from tests.arch.source import ROOT

pytestmark = pytest.mark.engine

OURS = "cadence.models.llama:LlamaForCausalLM"
EXAMPLE = ROOT / "examples/out_of_tree"
PARTS = [f"self_attn.{name}_proj" for name in "qkvo"] + [f"mlp.{name}_proj" for name in ("gate", "up", "down")]
OPTIONS: dict[str, Any] = {"dtype": "float32", "max_model_len": 64, "num_gpu_blocks_override": 16}


@pytest.fixture(autouse=True)
def nothing_registered() -> Iterator[None]:
    """Before a test, and after it."""
    known, classes = dict(MODEL_CLASSES), dict(model_registry._classes)
    model_registry._find_packages.cache_clear()
    yield
    for table, before in ((MODEL_CLASSES, known), (model_registry._classes, classes)):
        table.clear()
        table.update(before)
    model_registry._find_packages.cache_clear()


@pytest.fixture
def renamed(tiny_model: Callable[[str], Path], tmp_path: Path) -> Path:
    """A Llama that says it is something else."""
    directory = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), directory)
    config = json.loads((directory / "config.json").read_text())
    config |= {"architectures": ["XyzzyForCausalLM"], "model_type": "xyzzy"}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def tokens(model: Path, **options: Any) -> list[int]:
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
    with LLM(str(model), **OPTIONS, **options) as llm:
        return list(llm.generate([5, 6, 7], params, use_tqdm=False)[0].outputs[0].token_ids)


def test_a_program_registers_a_class(renamed: Path, tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ModelFileError, match="'XyzzyForCausalLM' is not supported"):
        tokens(renamed)
    ModelRegistry.register_model("XyzzyForCausalLM", OURS)
    assert {"XyzzyForCausalLM", "XyzzyModel"} <= ModelRegistry.get_supported_archs()
    assert tokens(renamed) == tokens(tiny_model("llama"))
    assert vllm.ModelRegistry is ModelRegistry


def test_an_option_names_one(renamed: Path, tiny_model: Callable[[str], Path]) -> None:
    named = {"XyzzyForCausalLM": OURS}
    assert tokens(renamed, model_class_overrides=named) == tokens(tiny_model("llama"))


def test_another_class_for_an_architecture_of_ours(tiny_model: Callable[[str], Path]) -> None:
    ModelRegistry.register_model("LlamaForCausalLM", "cadence.models.nowhere:Llama")
    with pytest.raises(ConfigError, match=r"cadence\.models\.nowhere:Llama, which was registered, cannot be imported"):
        tokens(tiny_model("llama"))


def installed(folder: Path, entries: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package that says this in its entry points."""
    info = folder / "xyzzy-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: xyzzy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(entries)
    monkeypatch.syspath_prepend(str(folder))


def test_an_installed_package_names_one(
    renamed: Path, tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path / "site", f"[cadence.models]\nXyzzyForCausalLM = {OURS}\n", monkeypatch)
    assert tokens(renamed) == tokens(tiny_model("llama"))
    assert model_registry.registered() == {"XyzzyForCausalLM": OURS}


def test_a_plugin_registers_what_it_likes(renamed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    installed(site, "[cadence.general_plugins]\nxyzzy = xyzzy_plugin:register\n", monkeypatch)
    plugin = "from cadence import ModelRegistry\ndef register():\n    "
    (site / "xyzzy_plugin.py").write_text(plugin + f"ModelRegistry.register_model('XyzzyForCausalLM', '{OURS}')\n")
    try:
        assert len(tokens(renamed)) == 6
    finally:
        sys.modules.pop("xyzzy_plugin", None)


@pytest.mark.parametrize(
    ("name", "model", "said"),
    [
        ("X", "no colon", "'no colon' is not of the form package.module:Class"),
        ("X Y", OURS, "'X Y' is no name of an architecture"),
        ("X", 7, "7 is no class"),
        ("X", type("Local", (), {"__module__": "__main__"}), "Local cannot be imported by another process"),
    ],
)
def test_what_cannot_be_registered(name: str, model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ModelRegistry.register_model(name, model)


def test_a_class_that_is_no_model_of_ours(renamed: Path) -> None:
    ModelRegistry.register_model("XyzzyForCausalLM", "torch.nn:Linear")
    with pytest.raises(ConfigError, match=r"torch\.nn:Linear is none that runs here: a model is a class over"):
        tokens(renamed)


def duet(config: dict[str, Any], weights: dict[str, torch.Tensor], ids: list[int]) -> torch.Tensor:
    """By plain torch: logits of each token [T, vocab]."""
    heads, kv_heads, hidden = (
        config["num_attention_heads"], config["num_key_value_heads"], config["hidden_size"],
    )  # fmt: skip
    size, count = hidden // heads, len(ids)
    angles = torch.arange(count)[:, None] * 10_000.0 ** (-torch.arange(0, size, 2) / size)
    cos, sin = angles.cos(), angles.sin()

    def turned(x: torch.Tensor) -> torch.Tensor:
        one, other = x.chunk(2, dim=-1)
        return torch.cat((one * cos - other * sin, other * cos + one * sin), dim=-1)

    def normed(x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, (hidden,), weights[name], config["rms_norm_eps"])

    x = weights["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        layer = {name: weights[f"model.layers.{index}.{name}.weight"] for name in PARTS}
        h = normed(x, f"model.layers.{index}.norm.weight")
        q, k, v = ((h @ layer[f"self_attn.{name}_proj"].T).view(count, -1, size).transpose(0, 1) for name in "qkv")
        k, v = (each.repeat_interleave(heads // kv_heads, dim=0) for each in (turned(k), v))
        attended = (
            F.scaled_dot_product_attention(turned(q), k, v, is_causal=True).transpose(0, 1).reshape(count, hidden)
        )
        inner = F.silu(h @ layer["mlp.gate_proj"].T) * (h @ layer["mlp.up_proj"].T)
        x = x + attended @ layer["self_attn.o_proj"].T + inner @ layer["mlp.down_proj"].T
    return normed(x, "model.norm.weight") @ weights["lm_head.weight"].T


def test_the_example_of_a_package(
    tiny_model: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its class found by the entry point that its pyproject.toml has, and its tokens those of plain torch."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    entries = "".join(f"{name} = {path}\n" for name, path in project["entry-points"]["cadence.models"].items())
    installed(tmp_path / "site", f"[cadence.models]\n{entries}", monkeypatch)
    monkeypatch.syspath_prepend(str(EXAMPLE))
    model, llama = tmp_path / "model", tiny_model("llama")
    shutil.copytree(llama, model)
    config = json.loads((llama / "config.json").read_text()) | {"architectures": ["DuetForCausalLM"]}
    (model / "config.json").write_text(json.dumps(config | {"model_type": "duet"}))
    weights = load_file(model / "model.safetensors")
    for name in [name for name in weights if name.endswith("post_attention_layernorm.weight")]:
        del weights[name]
    weights = {name.replace("input_layernorm", "norm"): tensor for name, tensor in weights.items()}
    save_file(weights, model / "model.safetensors")
    found = tokens(model)
    logits = duet(config, weights, [5, 6, 7, *found])
    assert found == logits[2:-1].argmax(dim=1).tolist()

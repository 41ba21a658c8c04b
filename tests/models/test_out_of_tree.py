"""Models whose classes are not in this package: registered by a program, named by an option, or by an installed one."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence import LLM, ModelRegistry, SamplingParams, vllm
from cadence.core import model_registry
from cadence.core.errors import ConfigError, ModelFileError
from cadence.core.model_heads import MODEL_CLASSES

pytestmark = pytest.mark.engine

OURS = "cadence.models.llama:LlamaForCausalLM"
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

"""A head that comes with the package is found by what its target is, not by what it is called."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cadence.config.args import EngineArgs
from cadence.config.hf import HFConfig, load_hf_config, make_hf_config
from cadence.config.reference import find_model
from cadence.config.resolve import builtin_heads
from cadence.config.resolve.builtin_heads import FOLDER, HEADS, builtin_head
from cadence.core.errors import ConfigError
from cadence.engine.source import find_source

SMOLLM2 = dict(HEADS[0].facts) | {"model_type": "llama"}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """With a head in it, as far as its configuration goes."""
    head = tmp_path / "data" / HEADS[0].folder
    head.mkdir(parents=True)
    config = SMOLLM2 | {"architectures": ["LlamaForCausalLMEagle3"], "num_hidden_layers": 1, "draft_vocab_size": 8192}
    (head / "config.json").write_text(json.dumps(config))
    (head / "model.safetensors").touch()
    monkeypatch.setattr(builtin_heads, "FOLDER", head.parent)
    return head


def described(**changes: Any) -> HFConfig:
    return make_hf_config("mine", Path("/models/mine/config.json"), SMOLLM2 | changes, {})


def saved(directory: Path, **changes: Any) -> Path:
    directory.mkdir()
    (directory / "config.json").write_text(json.dumps(SMOLLM2 | changes))
    (directory / "model.safetensors").touch()
    return directory


def args(target: Path, **keys: Any) -> EngineArgs:
    return EngineArgs.from_options(model=str(target), speculative_config={"method": "eagle3"} | keys)


def test_smollm2_has_one(folder: Path) -> None:
    assert builtin_head("eagle3", load_hf_config(find_model("smollm2"))).directory == folder


def test_a_target_like_it_needs_no_model(folder: Path, tmp_path: Path) -> None:
    draft = find_source(args(saved(tmp_path / "renamed"))).draft
    assert draft is not None and (draft.method, draft.files.directory) == ("eagle3", folder)
    assert draft.hf["draft_vocab_size"] == 8192


def test_one_that_is_named_goes_before_it(folder: Path, tmp_path: Path) -> None:
    own = saved(tmp_path / "own", architectures=["LlamaForCausalLMEagle3"], num_hidden_layers=1)
    draft = find_source(args(saved(tmp_path / "target"), model=str(own))).draft
    assert draft is not None and draft.files.directory == own


@pytest.mark.parametrize(
    "change",
    [{"hidden_size": 960}, {"num_hidden_layers": 32}, {"max_position_embeddings": 2048}, {"vocab_size": 50_000}],
)
def test_other_targets_must_name_one(change: dict[str, int], folder: Path, tmp_path: Path) -> None:
    model = saved(tmp_path / "other", **change)
    with pytest.raises(ConfigError, match=r"speculative_config\.model is missing: .* for SmolLM2-135M-Instruct one is"):
        find_source(args(model))
    with pytest.raises(ConfigError, match=r"speculative_config\.model is missing"):
        builtin_head("eagle", described())


def test_an_installation_without_it_says_so(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"not in this installation: .*smollm2_eagle3/model.safetensors is missing"):
        builtin_head("eagle3", described())


def test_what_is_shipped_is_small() -> None:
    assert sum(path.stat().st_size for path in (FOLDER / HEADS[0].folder).iterdir()) < 20_000_000

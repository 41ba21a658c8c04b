"""Draft models from files: where their layers stand, and how far they draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.config.speculative import DraftSource, SpeculativeConfig
from cadence.speculate.draft_model import DraftModel
from cadence.speculate.load import load_draft
from tests.helpers.drafting import LENGTH
from tests.helpers.head_layouts import LAYOUTS, Target

pytestmark = pytest.mark.device


def loaded(target: Target, method: str, directory: Path, **options: int) -> DraftModel:
    files = ModelFiles(str(directory), directory, None)
    draft = None if method == "mtp" else DraftSource(method, files, load_hf_config(files))
    config = SpeculativeConfig(method, 4, draft, **options)
    return load_draft(config, target.config, target.load, target.build, target.model)


@pytest.mark.parametrize(("length", "limit", "drafted"), [(128, 0, 128), (4096, 0, LENGTH), (128, 100, 100)])
def test_a_model_drafts_as_far_as_it_was_made_for(
    length: int, limit: int, drafted: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    target = Target(tiny_model("llama"))
    shutil.copytree(tiny_model("qwen3"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": length}
    (tmp_path / "config.json").write_text(json.dumps(config))
    draft = loaded(target, "draft_model", tmp_path, max_model_len=limit)
    assert (draft.first_layer, draft.max_len, len(draft.proposer.kv_layers())) == (4, drafted, 4)


@pytest.mark.parametrize("layout", ["eagle of speculators", "eagle3", "mtp as in MiMo"])
def test_a_head_drafts_at_every_length(layout: str, tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    method, directory, _ = LAYOUTS[layout](tiny_model("llama"), tmp_path / "head")
    target = Target(directory if method == "mtp" else tiny_model("llama"))
    draft = loaded(target, method, directory)
    assert (draft.first_layer, draft.max_len, len(draft.proposer.kv_layers())) == (4, LENGTH, 1)

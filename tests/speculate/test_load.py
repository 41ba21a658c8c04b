"""Draft models from files: where their layers stand, and how far they draft."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.models.loader.load_head import HeadSource
from cadence.speculate.load import load_draft_head, load_draft_model
from tests.helpers.drafting import LENGTH
from tests.helpers.head_layouts import LAYOUTS, Target

pytestmark = pytest.mark.device


@pytest.mark.parametrize(("length", "drafted"), [(128, 128), (4096, LENGTH)])
def test_a_model_drafts_as_far_as_it_was_made_for(
    length: int, drafted: int, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    target = Target(tiny_model("llama"))
    shutil.copytree(tiny_model("qwen3"), tmp_path, dirs_exist_ok=True)
    config = json.loads((tmp_path / "config.json").read_text()) | {"max_position_embeddings": length}
    (tmp_path / "config.json").write_text(json.dumps(config))
    files = ModelFiles(str(tmp_path), tmp_path, None)
    draft = load_draft_model(
        replace(target.config, files=files, hf=load_hf_config(files)), target.load, target.build, target.model
    )
    assert (draft.first_layer, draft.max_len, len(draft.drafter.kv_layers())) == (4, drafted, 4)


def test_a_head_drafts_at_every_length(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    target = Target(tiny_model("llama"))
    _, directory, _ = LAYOUTS["eagle3"](target.directory, tmp_path)
    source = HeadSource("eagle3", ModelFiles("", directory, None), target.model, target.config)
    draft = load_draft_head(source, target.load, target.build)
    assert (draft.first_layer, draft.max_len, len(draft.drafter.kv_layers())) == (4, LENGTH, 1)

"""Whatever the files of a model that sees say, it loads or is refused in one sentence, soon and in little memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence.config.files import fields, processor_fields
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import CadenceError
from cadence.core.inputs.media import IMAGE
from cadence.media.family import FamilyFiles, open_family
from cadence.media.picture import Picture
from tests.helpers import lies
from tests.helpers.wide import mostly_wide
from tests.models.test_model_files_that_lie import attempt, in_little_memory

__all__ = ["in_little_memory"]

pytestmark = pytest.mark.engine

FAMILIES = ("gemma3", "idefics3", "llava", "llava_next", "llava_siglip")
OUTER = (
    "scale_factor", "mm_tokens_per_image", "vision_feature_layer", "vision_feature_select_strategy", "vision_config",
    "projector_hidden_act", "multimodal_projector_bias", "image_grid_pinpoints", "image_token_id",
)  # fmt: skip
PICTURE = Picture(np.zeros((7, 90, 3), dtype=np.uint8), "")
GRIDS: list[Any] = [[[]], [[28]], [[28, 28, 28]], [[27, 28]], [[0, 28]], [[16_384, 16_384]], [[28, 28]] * 70_000]
SIDES: list[Any] = [{"longest_edge": lie} for lie in lies.LIES] + [{"height": lie, "width": 28} for lie in lies.LIES]


def prepare(model: Path) -> None:
    """What the host half reads, and a picture."""
    hf = load_hf_config(ModelFiles("m", model, None))
    files = FamilyFiles(hf.raw, model, lambda text: -1)
    for content in open_family(hf.architecture, files).prepare(IMAGE, PICTURE).contents:
        assert content.values_np.nbytes < 1 << 26


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [1]))
def test_lies_in_config_json(vision_model: Callable[[str], Path], tmp_path: Path, part: int) -> None:
    refused = 0
    for family in FAMILIES:
        source = vision_model(family)
        raw = json.loads((source / "config.json").read_text())
        places = [(name,) for name in OUTER if name in raw] + [("vision_config", name) for name in fields.VISION_FIELDS]
        for number, where in enumerate(places):
            for lie in [*lies.lies_of(part, number), *(GRIDS if where == ("image_grid_pinpoints",) else [])]:
                content = lies.json_with(raw, where, lie)
                directory = lies.copy_with(source, tmp_path / family, "config.json", content)
                refused += attempt(directory, f"{family} {where} = {str(lie)[:50]}") is not None
    assert refused > 150


@pytest.mark.parametrize("part", mostly_wide(range(lies.PARTS), [1]))
def test_lies_in_preprocessor_config_json(vision_model: Callable[[str], Path], tmp_path: Path, part: int) -> None:
    refused = 0
    for family in FAMILIES:
        source = vision_model(family)
        raw = json.loads((source / "preprocessor_config.json").read_text())
        sides = ("size", "crop_size", "max_image_size")
        for number, name in enumerate([*processor_fields.PROCESSOR_FIELDS, *sides]):
            more = GRIDS if name == "image_grid_pinpoints" else SIDES if name in sides else []
            for lie in [*lies.lies_of(part, number), *more]:
                content = lies.json_with(raw, (name,), lie)
                directory = lies.copy_with(source, tmp_path / family, "preprocessor_config.json", content)
                what = f"{family} {name} = {str(lie)[:50]}"
                refused += attempt(directory, what, prepare) is not None
    assert refused > 150


def test_a_very_long_picture_is_not_made_longer(vision_model: Callable[[str], Path]) -> None:
    """A side of it alone would take gigabytes."""
    for family in (*FAMILIES, "smolvlm"):
        model = vision_model(family)
        hf = load_hf_config(ModelFiles("m", model, None))
        opened = open_family(hf.architecture, FamilyFiles(hf.raw, model, lambda text: -1))
        for shape in ((1, 500_000, 3), (500_000, 1, 3)):
            try:
                prepared = opened.prepare(IMAGE, Picture(np.full(shape, 7, dtype=np.uint8), ""))
            except CadenceError as error:
                raise AssertionError(family) from error
            assert all(content.values_np.nbytes < 1 << 20 for content in prepared.contents)

"""Whatever a GGUF file with a tower says, the model loads with it or is refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cadence import gguf
from cadence.config.hf import load_hf_config
from cadence.config.reference import find_model
from cadence.config.tower_file import with_tower
from cadence.core.errors import CadenceError, ModelFileError
from cadence.core.inputs.media import IMAGE
from cadence.gguf.file import GGUFFile
from cadence.media.family import FamilyFiles, open_family
from tests.helpers import lies
from tests.helpers.gguf_towers import write_pair
from tests.helpers.tiny_qwen_vl import make_qwen_vl
from tests.helpers.wide import mostly_wide
from tests.models.test_model_files_that_lie import _fits_gguf, attempt, in_little_memory
from tests.models.test_vision_files_that_lie import PICTURE

__all__ = ["in_little_memory"]

pytestmark = pytest.mark.engine

FAMILIES = ("llava", "llava_next", "smolvlm", "gemma3", "qwen2.5")
MORE = ("clip.vision.projector_type", "clip.use_silu", "clip.vision.window_size", "clip.vision.spatial_merge_size")
ARRAYS = [np.arange(3), np.zeros(0), np.array([np.nan, 1, 1]), np.full(3, -(2**62)), np.full(3, 1e30)]


@pytest.fixture(scope="module")
def pairs(vision_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The name of the tower's file begins with that of the other: messages name either."""
    found = {}
    for family in FAMILIES:
        folder = tmp_path_factory.mktemp(family)
        qwen = family.startswith("qwen")
        source = make_qwen_vl(family.removeprefix("qwen"), folder / "source") if qwen else vision_model(family)
        found[family] = model = write_pair(source, folder / "gguf")
        (model.parent / "mmproj-model-f16.gguf").rename(tower_of(model))
    return found


def tower_of(model: Path) -> Path:
    return model.with_name(f"{model.name}.mmproj.gguf")


def load(model: Path) -> None:
    """And what the host half reads, and a picture."""
    lies.load(model, mmproj=str(tower_of(model)))
    hf = load_hf_config(with_tower(find_model(str(model)), str(tower_of(model))))
    token = {"<|video_pad|>": 8}
    family = open_family(hf.architecture, FamilyFiles(hf.raw, model, lambda text: token.get(text, 7)))
    for content in family.prepare(IMAGE, PICTURE).contents:
        assert content.values_np.nbytes < 1 << 26


@pytest.mark.parametrize("family", mostly_wide(FAMILIES, ("llava_next",)))
def test_lies_in_metadata(pairs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    model, refused = pairs[family], 0
    load(model)
    keys = [key for key in GGUFFile(tower_of(model)).metadata if not key.startswith("GGUF.")] + list(MORE)
    for number, key in enumerate(keys):
        for lie in [*filter(_fits_gguf, lies.lies_of(number % lies.PARTS, number)), ARRAYS[number % len(ARRAYS)]]:
            monkeypatch.setattr(gguf, "GGUFFile", partial(open_lying, key, lie))
            refused += refused_by(model, f"{family}: {key} = {str(lie)[:50]}")
    assert refused > 3 * len(keys)


def refused_by(model: Path, what: str) -> bool:
    """What is wrong with sizes of Qwen is said of the files that a GGUF file stands for."""
    return attempt(model, what, lambda model: said_of(model, load)) is not None


def said_of(model: Path, load: Callable[[Path], None]) -> None:
    try:
        load(model)
    except ModelFileError as error:
        if not str(error).startswith(("config.json: ", "preprocessor_config.json: ")):
            raise
        raise ModelFileError(f"{model}: {error}", error.field) from None


def open_lying(key: str, lie: Any, where: Path, **options: Any) -> GGUFFile:
    file = GGUFFile(where, **options)
    if "mmproj" in where.name:
        file.metadata[key] = lie
    return file


@pytest.mark.parametrize("family", FAMILIES)
def test_lacking_and_strange_tensors(pairs: dict[str, Path], monkeypatch: pytest.MonkeyPatch, family: str) -> None:
    """Every one of them is missed; one that nobody knows is left over."""
    model = pairs[family]
    names = list(GGUFFile(tower_of(model)).tensors)
    for name in names[:: 5 if len(names) > 40 else 1]:
        monkeypatch.setattr(gguf, "GGUFFile", partial(open_changed, name, name.replace(".", "!")))
        error = attempt(model, f"{family}: without {name}", load)
        assert error is not None or "post_ln" in name or ".blk.2." in name, name


def open_changed(name: str, new: str, where: Path, **options: Any) -> GGUFFile:
    """A tensor by another name."""
    file = GGUFFile(where, **options)
    if name in file.tensors:
        file.tensors[new] = replace(file.tensors.pop(name), name=new)
    return file


@pytest.mark.parametrize("damage", ["cut short", "bytes changed", "no file"])
def test_damaged_files(pairs: dict[str, Path], tmp_path: Path, damage: str) -> None:
    raw = tower_of(pairs["llava"]).read_bytes()
    rng = np.random.default_rng(4)
    for number in range(40):
        path = tmp_path / f"{number}.gguf"
        if damage == "cut short":
            path.write_bytes(raw[: rng.integers(len(raw))])
        elif damage == "bytes changed":
            changed = np.frombuffer(raw, np.uint8).copy()
            changed[rng.integers(0, 4000, 5)] = rng.integers(0, 256, 5)
            path.write_bytes(changed.tobytes())
        try:
            lies.load(pairs["llava"], mmproj=str(path))
        except CadenceError as error:
            assert "\n" not in str(error) and len(str(error)) < 1500
        else:
            assert damage == "bytes changed"

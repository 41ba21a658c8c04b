"""Towers give the vectors that transformers gives for the same pixels, alone and in company."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.media_config import resolve_media
from cadence.config.reference import ModelFiles
from cadence.core.inputs.media import IMAGE
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.media.family import FamilyFiles, open_family
from cadence.media.picture import Picture
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.media import MediaContent
from cadence.models.loader import load_model
from tests.helpers.tiny_vision import VISION_FAMILIES
from tests.helpers.vision_processors import image_processor

pytestmark = pytest.mark.device

SQUARES = tuple(family for family in VISION_FAMILIES if family != "llava_next")


def load(directory: Path, ops: Ops) -> DecoderLM:
    files = ModelFiles(str(directory), directory, None)
    config = ModelConfig(files, load_hf_config(files), "float32", 64, 0, 20, "raw_logprobs")
    return load_model(
        config, LoadConfig("auto", use_tqdm=False), BuildContext(torch.float32, torch.device("cpu"), ops, 64)
    )


def oracle(directory: Path) -> Any:
    from transformers import AutoModelForImageTextToText

    model = AutoModelForImageTextToText.from_pretrained(directory, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


TILES = {"idefics3": ((32, 32, 3), 16)}  # of a size that its tower was not trained with


def content_of(model: DecoderLM, family: str, seed: int) -> MediaContent:
    like = model.tower.largest(100_000)  # more than any content has
    shape, length = TILES.get(family, (like.values.shape, like.length))
    noise = torch.Generator().manual_seed(seed)
    return MediaContent(IMAGE, torch.randint(0, 256, shape, dtype=torch.uint8, generator=noise), like.grid, length)


def scaled(model: DecoderLM, contents: list[MediaContent]) -> torch.Tensor:
    return torch.stack([model.tower.scale.of(content.values) for content in contents])


@pytest.fixture(params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return ReferenceOps() if request.param == "reference" else CpuOps(Calls(1))


@pytest.mark.parametrize("family", SQUARES)
def test_vectors_are_those_of_transformers(family: str, ops: Ops, vision_model: Callable[[str], Path]) -> None:
    model, told = load(vision_model(family), ops), oracle(vision_model(family))
    contents = [content_of(model, family, seed) for seed in range(3)]
    values = scaled(model, contents)
    if family in ("smolvlm", "idefics3"):
        values = values[None]
    with torch.inference_mode():
        want = told.model.get_image_features(pixel_values=values).pooler_output
        want = torch.cat(list(want)) if isinstance(want, list | tuple) else want.flatten(0, 1)
        got = model.tower.encode(contents, ops)
    assert got.shape == want.shape == (sum(content.length for content in contents), 64)
    assert want.std() > 0.05 and (want[0] - want[-1]).abs().max() > 0.05
    torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_vectors_of_tiles_are_those_of_transformers(ops: Ops, vision_model: Callable[[str], Path]) -> None:
    """LLaVA-NeXT's, which depend on the picture's own shape."""
    directory = vision_model("llava_next")
    model, told, raw = load(directory, ops), oracle(directory), json.loads((directory / "config.json").read_text())
    family = open_family("LlavaNextForConditionalGeneration", FamilyFiles(raw, directory, lambda text: -1))
    noise = np.random.default_rng(1)
    shapes = [(40, 50), (1, 1), (97, 31), (1, 200), (300, 2), (29, 90)]
    pictures = [Picture(noise.integers(0, 256, (*shape, 3), dtype=np.uint8), "") for shape in shapes]
    contents = [family.prepare(IMAGE, picture).contents[0] for picture in pictures]
    on_device = [MediaContent(IMAGE, torch.from_numpy(each.values_np), each.grid, each.length) for each in contents]
    images = [Image.fromarray(picture.pixels_np) for picture in pictures]
    inputs = image_processor(directory)(images=images, return_tensors="pt")
    with torch.inference_mode():
        want = told.model.get_image_features(
            **inputs, vision_feature_layer=-2, vision_feature_select_strategy="default"
        )
        got = model.tower.encode(on_device, ops).split([each.length for each in contents])
    for ours, theirs in zip(got, want.pooler_output, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_gemma3_without_a_tower_takes_text_alone(vision_model: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = vision_model("gemma3")
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    kept = {name: value for name, value in load_file(whole / "model.safetensors").items() if "vision" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    assert load(whole, ReferenceOps()).tower.reads == {IMAGE}
    assert not load(tmp_path, ReferenceOps()).tower.reads
    for directory, exists in ((whole, True), (tmp_path, False)):
        assert resolve_media(load_hf_config(ModelFiles("m", directory, None)), False, 64).exists is exists


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_bits_alone_are_those_in_company(family: str, vision_model: Callable[[str], Path]) -> None:
    ops = CpuOps(Calls(2))
    model = load(vision_model(family), ops)
    contents = [content_of(model, family, seed) for seed in range(4)]
    with torch.inference_mode():
        together = model.tower.encode(contents, ops).split([content.length for content in contents])
        for content, got in zip(contents, together, strict=True):
            assert torch.equal(model.tower.encode([content], ops), got)
        assert torch.equal(model.tower.encode(contents[2:0:-1], ops), torch.cat([together[2], together[1]]))


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_the_largest_content_is_one_of_its_own(family: str, vision_model: Callable[[str], Path]) -> None:
    """Whatever an engine would have room for: it is tried before requests come."""
    ops = ReferenceOps()
    tower = load(vision_model(family), ops).tower
    for length in (1, 70, 100_000):
        content = tower.largest(length)
        assert content.values.shape[-3] <= 32 and content.values.dtype is torch.uint8
        with torch.inference_mode():
            assert len(tower.encode([content], ops)) == content.length

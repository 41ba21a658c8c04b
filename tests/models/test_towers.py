"""Towers give the vectors that transformers gives for the same pixels, alone and in company."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.media import IMAGE
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.interface.ops import Ops
from cadence.kernels.reference.ops import ReferenceOps
from cadence.media.family import FamilyFiles, open_family
from cadence.models.decoder import DecoderLM
from cadence.models.interface.build import BuildContext
from cadence.models.interface.media import MediaContent
from cadence.models.loader import load_model
from tests.helpers.tiny_vision import VISION_FAMILIES, make_vision

FAMILIES = tuple(family for family in VISION_FAMILIES if family != "llava_next")


@pytest.fixture(scope="module")
def vision_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    root = tmp_path_factory.mktemp("vision")
    return lambda family: root / family if (root / family).exists() else make_vision(family, root / family)


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


def content_of(model: DecoderLM, seed: int) -> MediaContent:
    like = model.tower.largest(4)
    noise = torch.Generator().manual_seed(seed)
    pixels = torch.randint(0, 256, like.values.shape, dtype=torch.uint8, generator=noise)
    return MediaContent(IMAGE, pixels, like.grid, like.length)


def scaled(model: DecoderLM, contents: list[MediaContent]) -> torch.Tensor:
    return torch.stack([model.tower.scale.of(content.values) for content in contents])


@pytest.fixture(params=["reference", "cpu"])
def ops(request: pytest.FixtureRequest) -> Ops:
    return ReferenceOps() if request.param == "reference" else CpuOps(Calls(1))


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_transformers(family: str, ops: Ops, vision_model: Callable[[str], Path]) -> None:
    model, told = load(vision_model(family), ops), oracle(vision_model(family))
    contents = [content_of(model, seed) for seed in range(3)]
    values = scaled(model, contents)
    if family in ("smolvlm", "idefics3"):
        values = values[None]
    with torch.inference_mode():
        want = told.model.get_image_features(pixel_values=values).pooler_output
        want = torch.cat(list(want)) if isinstance(want, list | tuple) else want.flatten(0, 1)
        got = model.tower.encode(contents, ops)
    assert got.shape == want.shape == (sum(content.length for content in contents), 64)
    assert want.std() > 0.05 and (want[0] - want[-1]).abs().max() > 0.05
    torch.testing.assert_close(got, want, atol=1e-5, rtol=0)


def test_gemma3_without_a_tower_takes_text_alone(vision_model: Callable[[str], Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    whole = vision_model("gemma3")
    (tmp_path / "config.json").write_bytes((whole / "config.json").read_bytes())
    kept = {name: value for name, value in load_file(whole / "model.safetensors").items() if "vision" not in name}
    save_file(kept, tmp_path / "model.safetensors")
    assert load(whole, ReferenceOps()).tower.reads == {IMAGE}
    assert not load(tmp_path, ReferenceOps()).tower.reads
    files = FamilyFiles(load_hf_config(ModelFiles("m", tmp_path, None)).raw, tmp_path, lambda text: -1)
    assert open_family("Gemma3ForConditionalGeneration", files) is None


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_bits_alone_are_those_in_company(family: str, vision_model: Callable[[str], Path]) -> None:
    ops = CpuOps(Calls(2))
    model = load(vision_model(family), ops)
    contents = [content_of(model, seed) for seed in range(4)]
    with torch.inference_mode():
        together = model.tower.encode(contents, ops).split([content.length for content in contents])
        for content, got in zip(contents, together, strict=True):
            assert torch.equal(model.tower.encode([content], ops), got)
        assert torch.equal(model.tower.encode(contents[2:0:-1], ops), torch.cat([together[2], together[1]]))

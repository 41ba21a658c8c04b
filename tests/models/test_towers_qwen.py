"""Towers of Qwen2-VL and Qwen2.5-VL are transformers' own, of pictures and of frames; and a content's bits are the same
in any company."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from cadence.config.engine_config import LoadConfig, ModelConfig
from cadence.config.hf import load_hf_config
from cadence.config.reference import ModelFiles
from cadence.core.errors import ConfigError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.device.calls import Calls
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.reference.ops import ReferenceOps
from cadence.models.interface.build import BuildContext
from cadence.models.interface.media import MediaContent
from cadence.models.loader import load_model
from tests.helpers.one_sequence import load
from tests.helpers.tiny_qwen_vl import GENERATIONS, MERGE, PATCH, flatten_config, make_qwen_vl, rename_weights

pytestmark = pytest.mark.device

SIZES = ((32, 64), (8, 8), (48, 40), (64, 64), (8, 72))  # pixels
CLASSES = {"2": "Qwen2VLForConditionalGeneration", "2.5": "Qwen2_5_VLForConditionalGeneration"}


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {each: make_qwen_vl(each, tmp_path_factory.mktemp("qwen")) for each in GENERATIONS}


def frames_of(seed: int, count: int, size: tuple[int, int]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)


def content_of(kind: str, frames_np: np.ndarray) -> MediaContent:
    height, width = frames_np.shape[1] // PATCH, frames_np.shape[2] // PATCH
    return MediaContent(kind, torch.from_numpy(frames_np), (1, height, width), height * width // MERGE**2)


CONTENTS = [
    *(content_of(IMAGE, frames_of(seed, 1, size)) for seed, size in enumerate(SIZES)),
    content_of(VIDEO, frames_of(9, 2, (24, 48))),
]


def oracle(directory: Path, generation: str) -> torch.Tensor:
    """All contents, one after another; of two frames, each is prepared as a picture, which stands in a patch twice."""
    import transformers
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    model = getattr(transformers, CLASSES[generation]).from_pretrained(directory, dtype=torch.float32)
    processor = Qwen2VLImageProcessorPil.from_pretrained(directory, do_resize=False)
    pixels, grids = [], []
    for content in CONTENTS:
        frames = [Image.fromarray(frame) for frame in content.values.numpy()]
        found: Any = processor(images=frames, return_tensors="pt")
        parts = found["pixel_values"].view(len(frames), -1, 3, 2, PATCH, PATCH)
        pixels.append(torch.stack([parts[0, :, :, 0], parts[-1, :, :, 1]], dim=2).flatten(1))
        grids.append(found["image_grid_thw"][:1])
    with torch.inference_mode():
        found = model.model.get_image_features(torch.cat(pixels), image_grid_thw=torch.cat(grids))
    return torch.cat(list(found.pooler_output))


@pytest.mark.parametrize("generation", GENERATIONS)
def test_towers_are_those_of_transformers(generation: str, directories: dict[str, Path]) -> None:
    expected = oracle(directories[generation], generation)
    tower = load(directories[generation]).tower
    with torch.inference_mode():
        together = tower.encode(CONTENTS, ReferenceOps())
        alone = torch.cat([tower.encode([content], ReferenceOps()) for content in CONTENTS])
    for ours in (together, alone):
        torch.testing.assert_close(ours, expected, atol=1e-5, rtol=1e-5)


def on_cpu(directory: Path, dtype: str) -> Any:
    """The model as engines on a CPU have it."""
    files = ModelFiles(str(directory), directory, None)
    config = ModelConfig(files, load_hf_config(files), dtype, 256, 0, 20, "raw_logprobs")
    ops = CpuOps(Calls(2))
    build = BuildContext(getattr(torch, dtype), torch.device("cpu"), ops, 256)
    return load_model(config, LoadConfig("auto", use_tqdm=False), build), ops


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("generation", GENERATIONS)
def test_contents_have_the_same_bits_in_any_company(generation: str, dtype: str, directories: dict[str, Path]) -> None:
    model, ops = on_cpu(directories[generation], dtype)
    with torch.inference_mode():
        together = model.tower.encode(CONTENTS, ops)
        backwards = [model.tower.encode([content], ops) for content in CONTENTS[::-1]]
    assert torch.equal(together, torch.cat(backwards[::-1]))
    if dtype == "float32":
        torch.testing.assert_close(together, oracle(directories[generation], generation), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_files_of_both_kinds_are_read(generation: str, directories: dict[str, Path], tmp_path: Path) -> None:
    usual = load(directories[generation])
    make_qwen_vl(generation, tmp_path)
    for change in (flatten_config, rename_weights):
        change(tmp_path)
        other = load(tmp_path)
        assert other.axes().has_axes and torch.equal(other.axes().axis_of, usual.axes().axis_of)
        assert torch.equal(other.axes().cos_sin, usual.axes().cos_sin)
        pairs = zip(usual.named_parameters(), other.named_parameters(), strict=True)
        assert all(name == again and torch.equal(one, two) for (name, one), (again, two) in pairs)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_largest_content_has_so_many_vectors(generation: str, directories: dict[str, Path]) -> None:
    tower = load(directories[generation]).tower
    for length in (1, 7, 36):
        content = tower.largest(length)
        assert length <= content.length <= length + 2 * length**0.5 + 1
        assert tower.encode([content], ReferenceOps()).shape == (content.length, 64)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("depth", 0),
        ("depth", 10**9),
        ("patch_size", "4"),
        ("num_heads", 3),
        ("window_size", 4),
        ("fullatt_block_indexes", 3),
        ("in_channels", 4),
        ("mlp_ratio", -1),
    ],
)
def test_fields_that_cannot_be_are_named(field: str, value: object) -> None:
    from cadence.config.files.qwen_vision import read_qwen_vision

    generation = "2" if field == "mlp_ratio" else "2.5"
    with pytest.raises(ConfigError, match="sizes of heads" if field == "num_heads" else f"vision_config.{field}"):
        read_qwen_vision({"vision_config": {field: value}}, CLASSES[generation])

"""What a family makes of pictures on the host is what transformers' processor makes of them: pixels and tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from cadence.core.inputs.media import IMAGE
from cadence.media.family import FamilyFiles, MediaFamily, Prepared, open_family
from cadence.media.picture import Picture
from cadence.models.vision.patches import PixelScale
from tests.helpers.tiny_vision import VISION_FAMILIES
from tests.helpers.vision_processors import image_processor, open_processor

pytestmark = pytest.mark.device

SIZES = [  # height, width
    (1, 1), (1, 2), (3, 2), (28, 28), (29, 57), (40, 50), (64, 32), (97, 96), (300, 7), (5, 211), (1, 160), (200, 1),
    (333, 500),
]  # fmt: skip


def family_of(directory: Path, **changes: Any) -> MediaFamily:
    """changes: `mm_processor_kwargs`"""
    config = json.loads((directory / "config.json").read_text())
    token_id = Tokenizer.from_file(str(directory / "tokenizer.json")).token_to_id
    files = FamilyFiles(config, directory, lambda text: -1 if token_id(text) is None else token_id(text), changes)
    found = open_family(config["architectures"][0], files)
    assert found is not None
    return found


def picture(size: tuple[int, int], seed: int = 0) -> Picture:
    noise = np.random.default_rng(seed)
    height, width = size
    values = np.linspace(0, 255, height * width * 3).reshape(height, width, 3) + noise.integers(
        -40, 40, (height, width, 3)
    )
    return Picture(values.clip(0, 255).astype(np.uint8), str(seed))


def scale_of(family: str) -> PixelScale:
    from cadence.models.vision.llava import CLIP_SCALE
    from cadence.models.vision.siglip import SIGLIP_SCALE

    return CLIP_SCALE if family in ("llava", "llava_next") else SIGLIP_SCALE


def scaled(prepared: Prepared, family: str) -> torch.Tensor:
    """[tiles, 3, H, W]"""
    values = (torch.from_numpy(np.array(content.values_np)) for content in prepared.contents)
    tiles = [tile for each in values for tile in (each if each.dim() == 4 else each[None])]
    return torch.stack([scale_of(family).of(tile) for tile in tiles])


def oracle_pixels(told: Any) -> torch.Tensor:
    pixels = torch.from_numpy(np.asarray(told["pixel_values"]))
    return pixels.reshape(-1, *pixels.shape[-3:]).float()


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_pixels_are_those_of_transformers(family: str, vision_model: Callable[[str], Path]) -> None:
    directory = vision_model(family)
    ours, theirs = family_of(directory), open_processor(directory)
    for seed, size in enumerate(SIZES):
        medium = picture(size, seed)
        told = theirs(images=[Image.fromarray(medium.pixels_np)], text=ours.placeholders[IMAGE], return_tensors="np")
        prepared = ours.prepare(IMAGE, medium)
        assert all(content.values_np.dtype == np.uint8 for content in prepared.contents)
        torch.testing.assert_close(scaled(prepared, family), oracle_pixels(told), atol=1e-6, rtol=0, msg=str(size))


OTHER_MEANS = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
PADDED = {"image_processor_type": "LlavaImageProcessor", "do_pad": True}


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llava", OTHER_MEANS),
        ("llava", {"do_normalize": False, "rescale_factor": 0.01}),
        ("llava", PADDED),
        ("llava", PADDED | OTHER_MEANS | {"size": {"height": 28, "width": 28}, "do_center_crop": False}),
        ("llava", {"resample": 0, "size": 30, "crop_size": 28}),
        ("llava_siglip", {"do_rescale": False}),
        ("llava_siglip", {"image_mean": 0.4, "image_std": [0.5, 0.4, 0.3]}),
        ("llava_next", OTHER_MEANS | {"resample": 2}),
        ("smolvlm", {"do_image_splitting": False}),
        ("smolvlm", OTHER_MEANS | {"size": {"longest_edge": 50}, "resample": 3}),
        ("gemma3", OTHER_MEANS),
    ],
)
def test_pixels_follow_the_settings(
    family: str, changes: dict[str, Any], vision_model: Callable[[str], Path], tmp_path: Path
) -> None:
    for path in vision_model(family).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    file = tmp_path / "preprocessor_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    ours, theirs = family_of(tmp_path), image_processor(tmp_path)
    for seed, size in enumerate(SIZES):
        medium = picture(size, seed)
        told = theirs(images=[Image.fromarray(medium.pixels_np)], return_tensors="np")
        got, want = scaled(ours.prepare(IMAGE, medium), family), oracle_pixels(told)
        torch.testing.assert_close(got, want, atol=2e-6, rtol=1e-6, msg=f"{size}")


@pytest.mark.parametrize("family", VISION_FAMILIES)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_tokens_are_those_of_transformers(family: str, count: int, vision_model: Callable[[str], Path]) -> None:
    directory = vision_model(family)
    ours, theirs = family_of(directory), open_processor(directory)
    token, placeholder = ours.token_ids[IMAGE], ours.placeholders[IMAGE]
    for first in range(0, len(SIZES) if count else 1, 2):
        media = [picture(SIZES[(first + index) % len(SIZES)], index) for index in range(count)]
        text = "to be" + "".join(f" {placeholder}\nor {index}" for index in range(count)) + " not to be"
        images = [Image.fromarray(medium.pixels_np) for medium in media] or None
        want = theirs(images=images, text=text, return_tensors=None)["input_ids"]
        want = want[0] if isinstance(want[0], list) else want
        prepared = [ours.prepare(IMAGE, medium) for medium in media]
        pieces = text.split(placeholder)
        expanded = pieces[0] + "".join(each.text + piece for each, piece in zip(prepared, pieces[1:], strict=True))
        got = theirs.tokenizer(expanded)["input_ids"]
        assert got == want
        lengths = [content.length for each in prepared for content in each.contents]
        assert runs(got, token, ours, prepared) == lengths
        assert all(length <= ours.max_length[IMAGE] for length in lengths)


def runs(ids: list[int], token: int, ours: MediaFamily, prepared: list[Prepared]) -> list[int]:
    """Lengths of what is one run of `token`, or several with nothing between them that lengths cut."""
    marks = np.flatnonzero(np.diff(np.concatenate(([0], np.array(ids) == token, [0])).astype(int)))
    return (marks[1::2] - marks[::2]).tolist()


CHANGES: dict[str, dict[str, Any]] = {
    "gemma3": {
        "do_pan_and_scan": True,
        "pan_and_scan_min_crop_size": 20,
        "pan_and_scan_max_num_crops": 3,
        "pan_and_scan_min_ratio_to_activate": 1.1,
    },
    "smolvlm": {"size": {"longest_edge": 64}},
    "idefics3": {"do_image_splitting": False},
    "llava": {"resample": 2, "image_mean": [0.1, 0.2, 0.3]},
}


@pytest.mark.parametrize("family", CHANGES)
def test_what_requests_say_of_the_processor(family: str, vision_model: Callable[[str], Path]) -> None:
    """Pixels, and the text of the prompt: a processor that is told the same."""
    directory, changes = vision_model(family), CHANGES[family]
    ours, plain, theirs = family_of(directory, **changes), family_of(directory), open_processor(directory)
    tokenizer, differ = theirs.tokenizer, 0
    for seed, size in enumerate([(28, 28), (29, 57), (64, 32), (97, 96), (60, 200), (333, 100)]):
        medium = picture(size, seed)
        sign = ours.placeholders[IMAGE]
        told = theirs(images=[Image.fromarray(medium.pixels_np)], text=sign, return_tensors="np", **changes)
        prepared = ours.prepare(IMAGE, medium)
        ids = tokenizer(prepared.text, add_special_tokens=False)["input_ids"]
        assert ids == told["input_ids"][0].tolist(), size
        if family != "llava":
            torch.testing.assert_close(scaled(prepared, family), oracle_pixels(told), atol=1e-6, rtol=0, msg=str(size))
        differ += not same(prepared, plain.prepare(IMAGE, medium))
    assert differ


def same(one: Prepared, other: Prepared) -> bool:
    pairs = zip(one.contents, other.contents, strict=False)
    return len(one.contents) == len(other.contents) and all(np.array_equal(a.values_np, b.values_np) for a, b in pairs)

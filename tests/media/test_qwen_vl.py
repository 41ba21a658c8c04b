"""The host half of Qwen2-VL and Qwen2.5-VL: pictures as transformers' processor prepares them, and tokens where its
models put them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from cadence.core.errors import InvalidRequestError, ModelFileError
from cadence.core.inputs.media import IMAGE, MOST_SEGMENTS, VIDEO, MediaItem
from cadence.media.families.qwen_vl import QwenFamily, most_cells, size_within
from cadence.media.family import FamilyFiles, Prepared, open_family
from cadence.media.picture import Picture
from cadence.media.video import Video
from cadence.models.vision.llava import CLIP_SCALE
from cadence.models.vision.qwen_patches import patches_of
from tests.helpers.tiny_qwen_vl import END, GENERATIONS, IMAGE_PAD, MERGE, PATCH, START, VIDEO_PAD, make_qwen_vl
from tests.helpers.wide import examples

pytestmark = pytest.mark.device

CLASSES = {"2": "Qwen2VLForConditionalGeneration", "2.5": "Qwen2_5_VLForConditionalGeneration"}
SIZES = [(32, 64), (33, 61), (8, 8), (100, 90), (7, 300), (301, 40), (64, 64), (1, 1), (15, 17)]


def pixels(seed: int, shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (*shape, 3), dtype=np.uint8)


def video_of(count: int, size: tuple[int, int], apart: float = 0.5) -> Video:
    return Video.of(pixels(count, (count, *size)), [apart * number for number in range(count)])


@pytest.fixture(scope="module")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {each: make_qwen_vl(each, tmp_path_factory.mktemp("qwen")) for each in GENERATIONS}


def family_of(directory: Path) -> QwenFamily:
    config = json.loads((directory / "config.json").read_text())
    family = open_family(config["architectures"][0], FamilyFiles(config, directory, lambda text: -1))
    assert isinstance(family, QwenFamily)
    return family


@pytest.mark.parametrize("generation", GENERATIONS)
def test_pictures_are_prepared_as_by_the_processor(generation: str, directories: dict[str, Path]) -> None:
    from transformers import AutoTokenizer
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil.from_pretrained(directories[generation])
    tokenizer = AutoTokenizer.from_pretrained(directories[generation])
    family = family_of(directories[generation])
    for seed, size in enumerate(SIZES):
        picture_np = pixels(seed, size)
        expected: Any = processor(images=[Image.fromarray(picture_np)], return_tensors="pt")
        prepared = family.prepare(IMAGE, Picture.of(picture_np))
        (content,) = prepared.contents
        assert content.grid == tuple(expected["image_grid_thw"][0].tolist())
        scaled = torch.stack([CLIP_SCALE.of(torch.tensor(frame)) for frame in content.values_np])
        ours = patches_of(scaled, PATCH, MERGE, 2)
        torch.testing.assert_close(ours, expected["pixel_values"].float(), atol=1e-6, rtol=0)
        count = len(ours) // MERGE**2
        assert content.length == count <= family.max_length[IMAGE]
        assert tokenizer(prepared.text)["input_ids"] == [START, *[IMAGE_PAD] * count, END]


def test_sizes_are_those_of_transformers() -> None:
    check_sizes()


@examples(200, 1000)
@given(
    height=st.integers(1, 3000),
    ratio=st.floats(0.005, 200),
    cell=st.sampled_from((8, 28)),
    low=st.integers(1, 10**6),
    more=st.integers(0, 10**6),
)
def check_sizes(height: int, ratio: float, cell: int, low: int, more: int) -> None:
    """Also: no picture has more vectors than the most that are told."""
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    width = max(1, round(height * ratio))
    if max(height, width) / min(height, width) > 200:
        return
    found = size_within(height, width, cell, (low, low + more))
    assert found == smart_resize(height, width, cell, low, low + more)
    assert found[0] * found[1] <= most_cells(low, low + more, cell) * cell**2


@pytest.mark.parametrize("generation", GENERATIONS)
def test_frames_of_a_video_go_by_pairs(generation: str, directories: dict[str, Path]) -> None:
    family = family_of(directories[generation])
    video = video_of(5, (70, 50), apart=0.75)
    prepared = family.prepare(VIDEO, video)
    assert [len(content.values_np) for content in prepared.contents] == [2, 2, 1]
    height, width = prepared.contents[0].values_np.shape[1:3]
    pictures = [np.asarray(Image.fromarray(frame).resize((width, height), 3)) for frame in video.frames_np]
    assert np.array_equal(np.concatenate([content.values_np for content in prepared.contents]), np.stack(pictures))
    moments = [0, 1, 2] if generation == "2" else [0, 3, 6]  # a pair is 1.5 seconds, a second 2 tokens
    sizes = (1, height // PATCH, width // PATCH)
    assert [content.grid for content in prepared.contents] == [(*sizes, i, moments[i]) for i in range(3)]
    length = height * width // (PATCH * MERGE) ** 2
    assert prepared.text == f"<|vision_start|>{'<|video_pad|>' * (3 * length)}<|vision_end|>"
    assert {content.length for content in prepared.contents} == {length}


def test_many_frames_share_what_a_video_may_have(directories: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((directories["2"] / "config.json").read_text())
    (tmp_path / "video_preprocessor_config.json").write_text(
        json.dumps({"size": {"shortest_edge": 64, "longest_edge": 2**22}})
    )
    family = QwenFamily(FamilyFiles(config, tmp_path, lambda text: -1))
    few, many = (family._frame_pixels(count)[1] for count in (2, 400))
    assert few == 2**22 and many == 115_200 * 64 * 2 // 400
    assert family._frame_pixels(10**9) == (64, 67)


@cache
def models() -> dict[str, Any]:
    """Without weights: what says where tokens stand."""
    import transformers

    found = {}
    for generation, name in CLASSES.items():
        config_name = name.replace("ForConditionalGeneration", "Config")
        config = getattr(transformers, config_name)(image_token_id=IMAGE_PAD, video_token_id=VIDEO_PAD)
        config.vision_config.tokens_per_second = 2
        with torch.device("meta"):
            config.text_config.num_hidden_layers = config.vision_config.depth = 1
            found[generation] = getattr(transformers, name)(config).model
    return found


@dataclass(frozen=True)
class Part:
    """A picture or a video of a prompt."""

    kind: str
    prepared: Prepared
    seconds: float = 0.0  # of two frames


Prompt = list[Part | int]  # numbers of tokens, and media between them


def items_of(prompt: Prompt) -> tuple[list[MediaItem], list[int]]:
    """-> with the kind of each token: text, a picture, a video"""
    items: list[MediaItem] = []
    kinds: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            kinds += [0] * part
            continue
        for content in part.prepared.contents:
            items.append(MediaItem(part.kind, len(kinds), content.length, content.values_np, content.grid))
            kinds += [1 if part.kind == IMAGE else 2] * content.length
    return items, kinds


def places_of(segments_np: np.ndarray, count: int) -> list[list[int]]:
    """Of each token: time, line and column."""
    places = []
    for token in range(count):
        first, t, h, w, width = segments_np[np.searchsorted(segments_np[:, 0], token, side="right") - 1].tolist()
        i = token - first
        places.append([t, h + i // width, w + i % width] if width else [t + i, h + i, w + i])
    return places


def trained_places(prompt: Prompt) -> list[list[int]]:
    """What follows comes after the last of all axes."""
    places: list[list[int]] = []
    for part in prompt:
        begin = max((axis for place in places for axis in place), default=-1) + 1
        if isinstance(part, int):
            places += [[begin + i] * 3 for i in range(part)]
            continue
        for content in part.prepared.contents:
            moment = content.grid[4] if len(content.grid) > 3 else 0
            lines, columns = content.grid[1] // MERGE, content.grid[2] // MERGE
            places += [[begin + moment, begin + y, begin + x] for y in range(lines) for x in range(columns)]
    return places


@st.composite
def prompts(draw: st.DrawFn, family: QwenFamily, longest: int) -> Prompt:
    """longest: most pairs of frames"""
    parts: Prompt = [draw(st.integers(1, 5))]
    for _ in range(draw(st.integers(0, 4))):
        size = draw(st.tuples(st.integers(8, 80), st.integers(8, 80)))
        if draw(st.booleans()):
            parts.append(Part(IMAGE, family.prepare(IMAGE, Picture.of(pixels(0, size)))))
        else:
            apart = draw(st.floats(0.1, 0.9))
            video = video_of(draw(st.integers(1, 2 * longest)), size, apart)
            between = (video.times[-1] - video.times[0]) / max(len(video.times) - 1, 1)
            parts.append(Part(VIDEO, family.prepare(VIDEO, video), 2 * between))
        parts.append(draw(st.integers(1, 5)))
    return parts


def transformers_places(generation: str, prompt: Prompt, kinds: list[int]) -> Any:
    """-> places, and how much further on what is generated stands"""
    grids: dict[str, list[list[int]]] = {IMAGE: [], VIDEO: []}
    seconds = []
    for part in prompt:
        if not isinstance(part, int):
            (_, h, w, *_), count = part.prepared.contents[0].grid, len(part.prepared.contents)
            grids[part.kind].append([count, h, w])
            if part.kind == VIDEO:
                seconds.append(part.seconds)
    told = {f"{kind}_grid_thw": torch.tensor(each) if each else None for kind, each in grids.items()}
    more = {"second_per_grid_ts": seconds} if generation == "2.5" else {}
    tokens = torch.tensor([kinds])
    with torch.device("cpu"):
        places, delta = models()[generation].get_rope_index(tokens, tokens, **told, **more)
    return places[:, 0].T.tolist(), int(delta)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_tokens_stand_where_transformers_puts_them(generation: str, directories: dict[str, Path]) -> None:
    family = family_of(directories[generation])

    @examples(40, 400)
    @given(prompt=prompts(family, longest=3))
    def check(prompt: Prompt) -> None:
        items, kinds = items_of(prompt)
        ours = places_of(family.rope_segments(items), len(kinds) + 3)
        assert ours[: len(kinds)] == trained_places(prompt)
        assert all(max(place) <= token for token, place in enumerate(ours)), "the table of turns is long enough"
        if agreed(prompt):
            places, delta = transformers_places(generation, prompt, kinds)
            assert ours[: len(kinds)] == places
            assert ours[len(kinds) :] == [[len(kinds) + i + delta] * 3 for i in range(3)], "what is generated"

    check()


def agreed(prompt: Prompt) -> bool:
    """No video goes on for longer than its lines and columns: there all agree on where the text after it stands."""
    return all(
        isinstance(part, int) or part.prepared.contents[-1].grid[-1] < max(part.prepared.contents[0].grid[1:3]) // MERGE
        for part in prompt
        if isinstance(part, int) or part.kind == VIDEO
    )


def test_what_is_refused(directories: dict[str, Path]) -> None:
    family = family_of(directories["2.5"])
    with pytest.raises(InvalidRequestError, match="200 times") as refused:
        family.prepare(IMAGE, Picture.of(pixels(0, (1, 201))))
    assert refused.value.field == "multi_modal_data.image"
    with pytest.raises(InvalidRequestError, match="200 times"):
        family.prepare(VIDEO, video_of(2, (402, 2)))
    with pytest.raises(InvalidRequestError, match="40 seconds apart; at most 1 may be"):
        family.prepare(VIDEO, video_of(4, (16, 16), apart=40.0))
    prepared = family.prepare(IMAGE, Picture.of(pixels(0, (16, 16))))
    for count, fits in ((MOST_SEGMENTS // 2 - 1, True), (MOST_SEGMENTS // 2 + 1, False)):
        items, _ = items_of([part for _ in range(count) for part in (1, Part(IMAGE, prepared))])
        if fits:
            assert len(family.rope_segments(items)) == 2 * count + 1
            continue
        with pytest.raises(InvalidRequestError, match=f"at most {MOST_SEGMENTS}"):
            family.rope_segments(items)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"min_pixels": "4"}, "pixels"),
        ({"min_pixels": 5000, "max_pixels": 4000}, "pixels"),
        ({"max_pixels": 2**40}, "pixels"),
        ({"size": {}}, "pixels"),
        ({"size": [1, 2]}, "pixels"),
        ({"merge_size": 4}, "merge_size must be 2"),
        ({"do_resize": False}, "do_resize must be True"),
    ],
)
def test_files_that_lie(settings: dict[str, Any], found: str, directories: dict[str, Path], tmp_path: Path) -> None:
    config = json.loads((directories["2"] / "config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelFileError, match=found):
        QwenFamily(FamilyFiles(config, tmp_path, lambda text: -1))

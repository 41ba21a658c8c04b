"""Idefics3 and SmolVLM: a picture is made large, cut into square tiles, and followed by itself as one more tile."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.media import IMAGE, SEGMENT, MediaItem
from cadence.core.inputs.pixel_means import HALF
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import filled_config, read_processor_config
from cadence.media.resize import LANCZOS, Pixels, resized

_DEFAULTS: dict[str, Any] = {
    "size": {"longest_edge": 4 * 364},
    "max_image_size": {"longest_edge": 364},
    "do_resize": True,
    "do_image_splitting": True,
}
_DEFAULT_TOKEN = 128_257
_MOST_PIXELS = 4096  # of a side, before a picture is cut
_MOST_TILES = 32  # of a line

_IMAGE, _AROUND, _WHOLE = "<image>", "<fake_token_around_image>", "<global-img>"


class IdeficsFamily:
    """Implements `MediaFamily`."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        config = filled_config(files.config, files.directory)
        settings = read_processor_config(files, _DEFAULTS)
        self._numbers = PixelNumbers.read(settings, HALF, HALF)
        self._resample = settings.told("resample", LANCZOS)
        self._tile = settings.side("max_image_size", "longest_edge")
        self._longest = settings.side("size", "longest_edge")
        self._splits = bool(settings["do_image_splitting"])
        patches, over = divmod(self._tile // config["vision_config"]["patch_size"], config.get("scale_factor", 2))
        if over or not patches:
            raise settings.wrong("max_image_size", f"makes tiles of {self._tile} pixels: no whole number of vectors")
        if min(self._longest, _MOST_PIXELS) > _MOST_TILES * self._tile or not settings["do_resize"]:
            raise settings.wrong("size", f"of {self._longest} pixels does not make tiles of {self._tile}")
        self._length = patches**2
        self.token_ids: Mapping[str, int] = {
            IMAGE: files.vector_token(("image_token_id",), _DEFAULT_TOKEN, _IMAGE).number
        }
        self.placeholders: Mapping[str, str] = {IMAGE: _IMAGE}
        self.max_length: Mapping[str, int] = {IMAGE: self._length}

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        height, width = _enlarged(*medium.pixels_np.shape[:2], self._longest)
        pixels_np = self._resized(medium.pixels_np, height, width)
        if not self._splits:
            return self._prepared([self._resized(pixels_np)], 0, 0)
        pixels_np = self._resized(pixels_np, *_whole_tiles(height, width, self._tile))
        rows, columns = (side // self._tile for side in pixels_np.shape[:2])
        if rows == columns == 1:
            return self._prepared([pixels_np], 0, 0)
        return self._prepared([*_tiles(pixels_np, self._tile), self._resized(pixels_np)], rows, columns)

    def _resized(self, pixels_np: Pixels, height: int = 0, width: int = 0) -> Pixels:
        """To the size of a tile unless another is named."""
        return resized(pixels_np, height or self._tile, width or self._tile, self._resample)

    def _prepared(self, squares: list[Pixels], rows: int, columns: int) -> Prepared:
        """squares: line by line, then the whole picture; 0 rows: that alone"""
        vectors = _IMAGE * self._length
        lines = (
            "".join(f"{_AROUND}<row_{row + 1}_col_{column + 1}>{vectors}" for column in range(columns)) + "\n"
            for row in range(rows)
        )
        text = "".join(lines) + ("\n" if rows else "") + f"{_AROUND}{_WHOLE}{vectors}{_AROUND}"
        return Prepared(tuple(Content(self._numbers.of(each), (), self._length) for each in squares), text)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)


def _enlarged(height: int, width: int, longest: int) -> tuple[int, int]:
    """The longer side as long as that, the other to the next even number, and neither above the most."""
    height, width = _scaled(height, width, longest)
    height, width = (height + height % 2, width) if width >= longest else (height, width + width % 2)
    height, width = max(height, 1), max(width, 1)
    if max(height, width) > _MOST_PIXELS:
        height, width = _scaled(height, width, _MOST_PIXELS)
    return max(height, 1), max(width, 1)


def _scaled(height: int, width: int, longest: int) -> tuple[int, int]:
    """In floats, rounded down, as processors do it."""
    aspect = width / height
    return (int(longest / aspect), longest) if width >= height else (longest, int(longest * aspect))


def _whole_tiles(height: int, width: int, tile: int) -> tuple[int, int]:
    longest = math.ceil(max(height, width) / tile) * tile
    height, width = _scaled(height, width, longest)
    return math.ceil(height / tile) * tile, math.ceil(width / tile) * tile


def _tiles(pixels_np: Pixels, tile: int) -> Iterator[Pixels]:
    for top in range(0, pixels_np.shape[0], tile):
        for left in range(0, pixels_np.shape[1], tile):
            yield pixels_np[top : top + tile, left : left + tile]

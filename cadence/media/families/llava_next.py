"""LLaVA-NeXT: a picture as a square, and then in as much detail as one of several sizes allows, in tiles."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.media import IMAGE, SEGMENT, MediaItem
from cadence.media.families.llava import SeenPart
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import filled_config, read_processor_config
from cadence.media.resize import BICUBIC, Pixels, resized

_MOST_TILES = 64


class LlavaNextFamily:
    """Implements `MediaFamily`."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        config = filled_config(files.config, files.directory)
        self._seen = SeenPart.read(config, files)
        defaults = {**self._seen.defaults, "image_grid_pinpoints": config["image_grid_pinpoints"]}
        settings = read_processor_config(files, defaults)
        self._numbers = PixelNumbers.read(settings, self._seen.mean, self._seen.std)
        self._resample = settings.told("resample", BICUBIC)
        self._sizes: list[list[int]] = settings["image_grid_pinpoints"]
        for name in ("size", "crop_size"):
            if settings.side(name, "shortest_edge", "height") != self._seen.image:
                raise settings.wrong(name, f"is not the model's image_size, {self._seen.image}")
        for size in self._sizes or [[]]:
            if not self._is_whole(size):
                message = f"names {size}, which is no height and width of at most {_MOST_TILES} tiles"
                raise settings.wrong("image_grid_pinpoints", message)
        self.token_ids: Mapping[str, int] = {IMAGE: self._seen.sign.number}
        self.placeholders: Mapping[str, str] = {IMAGE: "<image>"}
        longest = max(
            self._length(height // self._seen.image, width // self._seen.image) for height, width in self._sizes
        )
        self.max_length: Mapping[str, int] = {IMAGE: longest}

    def _is_whole(self, size: Sequence[int]) -> bool:
        image = self._seen.image
        return len(size) == 2 and not any(side % image for side in size) and math.prod(size) <= _MOST_TILES * image**2

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        height, width = medium.pixels_np.shape[:2]
        image, side = self._seen.image, self._seen.side
        target = _best_size(height, width, self._sizes)
        rows, columns = target[0] // image, target[1] // image
        tiles_np = self._fitted(medium.pixels_np, *target).reshape(rows, image, columns, image, 3).swapaxes(1, 2)
        whole_np = resized(medium.pixels_np, image, image, self._resample)
        values_np = self._numbers.of(np.concatenate([whole_np[None], tiles_np.reshape(-1, image, image, 3)]))
        top, left = _outside(height, width, rows * side, columns * side)
        length = self._length(rows, columns, top, left)
        content = Content(values_np, (rows, columns, top, left), length)
        return Prepared((content,), self._seen.sign.text * length)

    def _fitted(self, pixels_np: Pixels, height: int, width: int) -> Pixels:
        """In its shape, in the middle of so many pixels."""
        own_height, own_width = pixels_np.shape[:2]
        across, down = width / own_width, height / own_height
        if across < down:
            new_height, new_width = min(math.ceil(own_height * across), height), width
        else:
            new_height, new_width = height, min(math.ceil(own_width * down), width)
        fitted_np = np.zeros((height, width, 3), dtype=np.uint8)
        top, left = (height - new_height) // 2, (width - new_width) // 2
        inner_np = resized(pixels_np, new_height, new_width, self._resample)
        fitted_np[top : top + new_height, left : left + new_width] = inner_np
        return fitted_np

    def _length(self, rows: int, columns: int, top: int = 0, left: int = 0) -> int:
        """Vectors: of the whole picture, then of lines of tiles, each with one more."""
        side = self._seen.side
        return self._seen.length + (rows * side - 2 * top) * (columns * side - 2 * left + 1)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)


def _best_size(height: int, width: int, sizes: Sequence[Sequence[int]]) -> tuple[int, int]:
    """The size in which a picture keeps most of its pixels, and of these the one with least room around it."""

    def worth(size: Sequence[int]) -> tuple[int, int]:
        scale = min(size[1] / width, size[0] / height)
        kept = min(int(width * scale) * int(height * scale), width * height)
        return kept, kept - size[0] * size[1]

    best = max(sizes, key=worth)
    return best[0], best[1]


def _outside(height: int, width: int, rows: int, columns: int) -> tuple[int, int]:
    """Of rows x columns vectors, those that are outside of a picture of this shape: above as below, left as right."""
    if width / height > columns / rows:
        inside = int(round(height * (columns / width), 7))
        return (rows - inside) // 2, 0
    inside = int(round(width * (rows / height), 7))
    return 0, (columns - inside) // 2

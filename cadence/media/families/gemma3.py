"""Gemma 3: a picture becomes a square of one size, whatever its shape."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.media import IMAGE, SEGMENT, MediaItem
from cadence.core.pixel_means import HALF
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import filled_config, read_processor_config
from cadence.media.resize import BILINEAR, resized

_DEFAULTS: dict[str, Any] = {"size": {"height": 224, "width": 224}}
_DEFAULT_TOKEN = 262_144

_UNUSED = "<unused0>"  # GGUF files may have no `_VECTOR`, whose number is beyond those of a tokenizer's own file
_BEGIN, _VECTOR, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"


class Gemma3Family:
    """Implements `MediaFamily`."""

    both_ways = True

    def __init__(self, files: FamilyFiles) -> None:
        config = filled_config(files.config, files.directory)
        settings = read_processor_config(files, _DEFAULTS)
        self._numbers = PixelNumbers.read(settings, HALF, HALF)
        self._resample = settings.told("resample", BILINEAR)
        self._image = config["vision_config"]["image_size"]
        if (settings.side("size", "height"), settings.side("size", "width")) != (self._image, self._image):
            raise settings.wrong("size", f"is {settings['size']}, but the model's image_size is {self._image}")
        self._length = config.get("mm_tokens_per_image", 256)
        sign = files.vector_token(("image_token_index",), _DEFAULT_TOKEN, _VECTOR, _UNUSED)
        self._sequence = f"\n\n{_BEGIN}{sign.text * self._length}{_END}\n\n"
        self.token_ids: Mapping[str, int] = {IMAGE: sign.number}
        self.placeholders: Mapping[str, str] = {IMAGE: _BEGIN}
        self.max_length: Mapping[str, int] = {IMAGE: self._length}

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        pixels_np = resized(medium.pixels_np, self._image, self._image, self._resample)
        return Prepared((Content(self._numbers.of(pixels_np), (), self._length),), self._sequence)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)

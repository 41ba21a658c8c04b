"""Gemma 3: a picture becomes a square of one size, whatever its shape; of a long one, pieces may be shown beside it
(`do_pan_and_scan`)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.media import IMAGE, SEGMENT, MediaItem
from cadence.core.inputs.pixel_means import HALF
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import ProcessorSettings, filled_config, read_processor_config
from cadence.media.resize import BILINEAR, Pixels, resized

_DEFAULTS: dict[str, Any] = {"size": {"height": 224, "width": 224}}
_DEFAULT_TOKEN = 262_144

_UNUSED = "<unused0>"  # GGUF files may have no `_VECTOR`, whose number is beyond those of a tokenizer's own file
_BEGIN, _VECTOR, _END = "<start_of_image>", "<image_soft_token>", "<end_of_image>"

_PIECES = " and here are some crops to help you see better"


@dataclass(frozen=True, slots=True)
class _Pieces:
    """Of a picture that is much longer one way than the other."""

    most: int  # 0: there are none
    least_side: int  # pixels
    least_ratio: float  # of a picture's sides

    @classmethod
    def read(cls, settings: ProcessorSettings) -> _Pieces:
        return cls(
            most=settings.told("pan_and_scan_max_num_crops", 4) if settings.told("do_pan_and_scan", False) else 0,
            least_side=settings.told("pan_and_scan_min_crop_size", 256),
            least_ratio=settings.told("pan_and_scan_min_ratio_to_activate", 1.2),
        )

    def of(self, pixels_np: Pixels) -> list[Pixels]:
        height, width = pixels_np.shape[:2]
        longer, shorter = max(height, width), min(height, width)
        if not self.most or longer / shorter < self.least_ratio:
            return []
        count = min(max(2, min(longer // self.least_side, int(longer / shorter + 0.5))), self.most)
        side = math.ceil(longer / count)
        if min(side, shorter) < self.least_side:
            return []
        places = [slice(side * number, side * (number + 1)) for number in range(count)]
        pieces = (pixels_np[:, place] if width >= height else pixels_np[place] for place in places)
        return [piece for piece in pieces if piece.size]


class Gemma3Family:
    """Implements `MediaFamily`."""

    both_ways = True

    def __init__(self, files: FamilyFiles) -> None:
        config = filled_config(files.config, files.directory)
        settings = read_processor_config(files, _DEFAULTS)
        self._numbers = PixelNumbers.read(settings, HALF, HALF)
        self._resample = settings.told("resample", BILINEAR)
        self._image = config["vision_config"]["image_size"]
        self._pieces = _Pieces.read(settings)
        if (settings.side("size", "height"), settings.side("size", "width")) != (self._image, self._image):
            raise settings.wrong("size", f"is {settings['size']}, but the model's image_size is {self._image}")
        self._length = config.get("mm_tokens_per_image", 256)
        sign = files.vector_token(("image_token_index",), _DEFAULT_TOKEN, _VECTOR, _UNUSED)
        self._sequence = f"\n\n{_BEGIN}{sign.text * self._length}{_END}\n\n"
        self.token_ids: Mapping[str, int] = {IMAGE: sign.number}
        self.placeholders: Mapping[str, str] = {IMAGE: _BEGIN}
        self.max_length: Mapping[str, int] = {IMAGE: self._length}

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        pieces = self._pieces.of(medium.pixels_np)
        squares = [resized(each, self._image, self._image, self._resample) for each in (medium.pixels_np, *pieces)]
        text = self._sequence
        if pieces:
            text = f"Here is the original image {text}{_PIECES} " + " ".join([text] * len(pieces))
        return Prepared(tuple(Content(self._numbers.of(each), (), self._length) for each in squares), text)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)

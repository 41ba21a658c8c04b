"""LLaVA 1.5: every picture is cut to a square, and becomes as many vectors as that has patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import ModelFileError
from cadence.core.media import IMAGE, SEGMENT, MediaItem
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.processor_config import read_processor_config
from cadence.media.resize import BICUBIC, centre_cropped, short_side_resized

_DEFAULTS: dict[str, Any] = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
_DEFAULT_TOKEN = 32000


class LlavaFamily:
    """Implements `MediaFamily`."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        vision = files.config.get("vision_config") or {}
        image, patch = int(vision.get("image_size", 224)), int(vision.get("patch_size", 32))
        whole = files.config.get("vision_feature_select_strategy", "default") == "full"
        self._length = (image // patch) ** 2 + whole
        settings = read_processor_config(files.directory, _DEFAULTS)
        self._edge, self._image = _edge(settings["size"]), image
        self._resample = int(settings.get("resample", BICUBIC))
        token_id = files.config.get("image_token_id", files.config.get("image_token_index", _DEFAULT_TOKEN))
        self.token_ids: Mapping[str, int] = {IMAGE: int(token_id)}
        self.placeholders: Mapping[str, str] = {IMAGE: "<image>"}
        self.max_length: Mapping[str, int] = {IMAGE: self._length}
        crop = _edge(settings["crop_size"])
        if crop != image:
            message = f"crop_size is {crop}, but the model's image_size is {image}"
            raise ModelFileError(f"{files.directory / 'preprocessor_config.json'}: {message}", "crop_size")

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        pixels_np = short_side_resized(medium.pixels_np, self._edge, self._resample)
        pixels_np = centre_cropped(pixels_np, self._image, self._image)
        return Prepared((Content(pixels_np, (), self._length),), self.placeholders[kind] * self._length)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)


def _edge(size: Any) -> int:
    """Of a square, in whichever way it is written."""
    if isinstance(size, Mapping):
        return int(size.get("shortest_edge", size.get("height", 0)))
    return int(size)

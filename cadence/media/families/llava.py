"""LLaVA 1.5: every picture becomes a square, and as many vectors as that has patches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.inputs.media import IMAGE, SEGMENT, MediaItem
from cadence.core.inputs.pixel_means import HALF, OPENAI_MEAN, OPENAI_STD, Channels
from cadence.media.family import Content, FamilyFiles, Prepared, VectorToken
from cadence.media.picture import Picture
from cadence.media.pixel_steps import PixelSteps
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import filled_config, read_processor_config

_SQUARE: dict[str, Any] = {"size": {"shortest_edge": 224}, "crop_size": {"height": 224, "width": 224}}
_CLIP: dict[str, Any] = {**_SQUARE, "do_center_crop": True}
_SIGLIP: dict[str, Any] = {"size": {"height": 224, "width": 224}}

_DEFAULT_TOKEN = 32_000
_IMAGE, _UNKNOWN = "<image>", "<unk>"  # GGUF files of LLaVA 1.5 have Llama's own vocabulary


@dataclass(frozen=True, slots=True)
class SeenPart:
    """What the tower takes and gives, by the model's configuration."""

    image: int  # pixels, each way
    side: int  # patches, each way
    length: int  # vectors of a picture
    mean: Channels  # by which the tower makes numbers of bytes
    std: Channels
    defaults: Mapping[str, Any]  # of the processor
    sign: VectorToken

    @classmethod
    def read(cls, config: Mapping[str, Any], files: FamilyFiles) -> SeenPart:
        """config: of the files, filled"""
        vision = config["vision_config"]
        side = vision["image_size"] // vision["patch_size"]
        siglip = vision["model_type"] == "siglip_vision_model"
        cut = config.get("vision_feature_select_strategy", "default") == "default"
        return cls(
            image=vision["image_size"],
            side=side,
            length=side**2 + (not siglip) - cut,
            mean=HALF if siglip else OPENAI_MEAN,
            std=HALF if siglip else OPENAI_STD,
            defaults=_SIGLIP if siglip else _CLIP,
            sign=files.vector_token(("image_token_id", "image_token_index"), _DEFAULT_TOKEN, _IMAGE, _UNKNOWN),
        )


class LlavaFamily:
    """Implements `MediaFamily`."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        seen = SeenPart.read(filled_config(files.config, files.directory), files)
        settings = read_processor_config(files, seen.defaults)
        self._numbers = PixelNumbers.read(settings, seen.mean, seen.std)
        self._steps = PixelSteps.read(settings, tuple(self._numbers.mean.tolist()))
        if self._steps.result != (seen.image, seen.image):
            made = "x".join(map(str, self._steps.result))
            raise settings.wrong("size", f"makes {made} pixels, but the model's image_size is {seen.image}")
        self._length = seen.length
        self._sign = seen.sign.text
        self.token_ids: Mapping[str, int] = {IMAGE: seen.sign.number}
        self.placeholders: Mapping[str, str] = {IMAGE: _IMAGE}
        self.max_length: Mapping[str, int] = {IMAGE: seen.length}

    def prepare(self, kind: str, medium: Picture) -> Prepared:
        values_np = self._numbers.of(self._steps.square(medium.pixels_np))
        return Prepared((Content(values_np, (), self._length),), self._sign * self._length)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        return np.zeros((0, SEGMENT), dtype=np.int32)

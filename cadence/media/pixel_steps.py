"""A picture into the square that a tower takes, by the steps that processors of CLIP, SigLIP and LLaVA have in common:
filled up to a square, resized, cut in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cadence.media.processor_config import side_of
from cadence.media.resize import BICUBIC, Pixels, centre_cropped, resized, short_side_resized


@dataclass(frozen=True, slots=True)
class PixelSteps:
    fill: tuple[int, ...]  # colour around what is no square; () = it stays as it is
    short_side: int  # of what is resized in its shape; 0 = it is made a square of `size`
    size: tuple[int, int]  # height and width; (0, 0) = it is not resized to a square
    crop: tuple[int, int]  # (0, 0) = not at all
    resample: int

    @classmethod
    def read(cls, settings: Mapping[str, Any], mean: tuple[float, ...]) -> PixelSteps:
        """settings: with a processor's defaults; mean: of pixels, for the colour"""
        size, crop = settings["size"], (0, 0)
        short = not isinstance(size, Mapping) or "shortest_edge" in size
        if settings.get("do_center_crop"):
            crop = side_of(settings, "crop_size", "height"), side_of(settings, "crop_size", "width")
        return cls(
            fill=tuple(int(part * 255) for part in mean) if settings.get("do_pad") else (),
            short_side=side_of(settings, "size", "shortest_edge") if short else 0,
            size=(0, 0) if short else (side_of(settings, "size", "height"), side_of(settings, "size", "width")),
            crop=crop,
            resample=settings.get("resample") or BICUBIC,
        )

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of what comes out; (0, 0) = they depend on the picture."""
        if self.crop[0]:
            return self.crop
        return (self.short_side, self.short_side) if self.fill else self.size

    def square(self, pixels_np: Pixels) -> Pixels:
        if self.fill:
            pixels_np = filled_up(pixels_np, self.fill)
        if self.short_side:
            pixels_np = short_side_resized(pixels_np, self.short_side, self.resample, max(self.crop))
        else:
            pixels_np = resized(pixels_np, *self.size, self.resample)
        return centre_cropped(pixels_np, *self.crop) if self.crop[0] else pixels_np


def filled_up(pixels_np: Pixels, colour: tuple[int, ...]) -> Pixels:
    height, width = pixels_np.shape[:2]
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    filled_np = np.empty((side, side, 3), dtype=np.uint8)
    filled_np[:] = np.array(colour, dtype=np.uint8)
    filled_np[top : top + height, left : left + width] = pixels_np
    return filled_np

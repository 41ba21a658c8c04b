"""A picture into the square that a tower takes, by the steps that processors of CLIP, SigLIP and LLaVA have in common:
filled up to a square, resized, cut in the middle."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cadence.media.processor_config import ProcessorSettings
from cadence.media.resize import BICUBIC, Pixels, centre_cropped, resized, short_side_resized

_MOST_FILLED = 1 << 13  # pixels of a side


@dataclass(frozen=True, slots=True)
class PixelSteps:
    fill: tuple[int, ...]  # colour around what is no square; () = it stays as it is
    short_side: int  # of what is resized in its shape; 0 = it is made a square of `size`
    size: tuple[int, int]  # height and width; (0, 0) = it is not resized to a square
    crop: tuple[int, int]  # (0, 0) = not at all
    resample: int

    @classmethod
    def read(cls, settings: ProcessorSettings, mean: tuple[float, ...]) -> PixelSteps:
        """settings: with a processor's defaults; mean: of pixels, for the colour"""
        size, crop = settings["size"], (0, 0)
        short = not isinstance(size, Mapping) or "shortest_edge" in size
        if settings.get("do_center_crop"):
            crop = settings.side("crop_size", "height"), settings.side("crop_size", "width")
        return cls(
            fill=tuple(int(part * 255) for part in mean) if settings.get("do_pad") else (),
            short_side=settings.side("size", "shortest_edge") if short else 0,
            size=(0, 0) if short else (settings.side("size", "height"), settings.side("size", "width")),
            crop=crop,
            resample=settings.told("resample", BICUBIC),
        )

    @property
    def result(self) -> tuple[int, int]:
        """Height and width of what comes out; (0, 0) = they depend on the picture."""
        if self.crop[0]:
            return self.crop
        return (self.short_side, self.short_side) if self.fill and self.short_side else self.size

    def square(self, pixels_np: Pixels) -> Pixels:
        if self.fill:
            pixels_np = filled_up(pixels_np, self.fill)
        if self.short_side:
            pixels_np = short_side_resized(pixels_np, self.short_side, self.resample, max(self.crop))
        else:
            pixels_np = resized(pixels_np, *self.size, self.resample)
        return centre_cropped(pixels_np, *self.crop) if self.crop[0] else pixels_np


def filled_up(pixels_np: Pixels, colour: tuple[int, ...]) -> Pixels:
    """A square with the picture in its middle. What is very long is made smaller first."""
    height, width = pixels_np.shape[:2]
    if height == width:
        return pixels_np
    if max(height, width) > _MOST_FILLED:
        share = _MOST_FILLED / max(height, width)
        height, width = max(1, int(height * share)), max(1, int(width * share))
        pixels_np = resized(pixels_np, height, width)
    side = max(height, width)
    top, left = (side - height) // 2, (side - width) // 2
    filled_np = np.empty((side, side, 3), dtype=np.uint8)
    filled_np[:] = np.array(colour, dtype=np.uint8)
    filled_np[top : top + height, left : left + width] = pixels_np
    return filled_np

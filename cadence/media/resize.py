"""Pixels in other sizes, as processors of images make them: with Pillow, in bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [H, W, 3]

_MOST_LONG = 1 << 14  # pixels of a side that are made to be cut away again

NEAREST, LANCZOS, BILINEAR, BICUBIC = 0, 1, 2, 3  # as Pillow and configurations number them


def resized(pixels_np: Pixels, height: int, width: int, resample: int = BICUBIC) -> Pixels:
    if pixels_np.shape[:2] == (height, width):
        return pixels_np
    from PIL import Image

    picture = Image.fromarray(pixels_np).resize((width, height), resample=Image.Resampling(resample))
    return np.asarray(picture)


def short_side_resized(pixels_np: Pixels, size: int, resample: int = BICUBIC, middle: int = 0) -> Pixels:
    """The shorter side gets `size` pixels, the other as many as keep the shape, rounded down. Where that is more than
    any picture needs, the `middle` of it alone is made, which a crop cuts out of it."""
    height, width = pixels_np.shape[:2]
    longer, shorter = max(height, width), min(height, width)
    long = int(size * longer / shorter)
    if middle and long > max(_MOST_LONG, middle):
        return _middle_resized(pixels_np, size, long, middle, resample)
    return resized(pixels_np, *((long, size) if width <= height else (size, long)), resample)


def _middle_resized(pixels_np: Pixels, size: int, long: int, middle: int, resample: int) -> Pixels:
    from PIL import Image

    height, width = pixels_np.shape[:2]
    step = max(height, width) / long
    first, last = (long - middle) // 2 * step, ((long - middle) // 2 + middle) * step
    upright = width <= height
    box = (0, first, width, last) if upright else (first, 0, last, height)
    new = (size, middle) if upright else (middle, size)
    return np.asarray(Image.fromarray(pixels_np).resize(new, Image.Resampling(resample), box))


def centre_cropped(pixels_np: Pixels, height: int, width: int) -> Pixels:
    """Black where the picture is smaller."""
    own_height, own_width = pixels_np.shape[:2]
    top, left = (own_height - height) // 2, (own_width - width) // 2
    if top >= 0 and left >= 0:
        return pixels_np[top : top + height, left : left + width]
    cropped_np = np.zeros((height, width, 3), dtype=np.uint8)
    to_top, to_left = max(-top, 0), max(-left, 0)
    inner_np = pixels_np[max(top, 0) : max(top, 0) + height, max(left, 0) : max(left, 0) + width]
    cropped_np[to_top : to_top + inner_np.shape[0], to_left : to_left + inner_np.shape[1]] = inner_np
    return cropped_np

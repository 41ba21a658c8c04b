"""Pixels in other sizes, as processors of images make them: with Pillow, in bytes."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]  # [H, W, 3]

NEAREST, LANCZOS, BILINEAR, BICUBIC = 0, 1, 2, 3  # as Pillow and configurations number them


def resized(pixels_np: Pixels, height: int, width: int, resample: int = BICUBIC) -> Pixels:
    from PIL import Image

    if pixels_np.shape[:2] == (height, width):
        return pixels_np
    picture = Image.fromarray(pixels_np).resize((width, height), resample=Image.Resampling(resample))
    return np.asarray(picture)


def short_side_resized(pixels_np: Pixels, size: int, resample: int = BICUBIC) -> Pixels:
    """The shorter side gets `size` pixels, the other as many as keep the shape, rounded down."""
    height, width = pixels_np.shape[:2]
    if width <= height:
        return resized(pixels_np, int(size * height / width), size, resample)
    return resized(pixels_np, size, int(size * width / height), resample)


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

"""Arrays as pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.media.limits import MediaLimits
from cadence.media.picture import Pixels


def as_array(value: Any, where: str) -> npt.NDArray[Any]:
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value)
    found = type(value).__name__
    message = f"{where} must be a picture of Pillow's, an array, bytes or a path; it is of the type {found}"
    raise InvalidRequestError(message, where)


def rgb_of_array(values_np: npt.NDArray[Any], where: str, limits: MediaLimits) -> Pixels:
    """[H, W], [H, W, 1], [H, W, 3] or [H, W, 4] -> [H, W, 3]"""
    if values_np.ndim == 2:
        values_np = values_np[..., None]
    if values_np.ndim != 3 or values_np.shape[2] not in (1, 3, 4):
        message = f"{where} must be an array [H, W, 3] or [H, W]; its shape is {list(values_np.shape)}"
        raise InvalidRequestError(message, where)
    limits.check_size(values_np.shape[1], values_np.shape[0], where)
    bytes_np = as_bytes(values_np, where)
    if bytes_np.shape[2] == 4:
        alpha_np = bytes_np[..., 3:].astype(np.float32) / 255
        bytes_np = np.rint(bytes_np[..., :3] * alpha_np + 255 * (1 - alpha_np)).astype(np.uint8)
    return np.repeat(bytes_np, 3, axis=2) if bytes_np.shape[2] == 1 else bytes_np


def as_bytes(values_np: npt.NDArray[Any], where: str) -> Pixels:
    if values_np.dtype == np.uint8:
        return values_np
    if values_np.dtype.kind != "f":
        raise InvalidRequestError(f"{where} must be an array of uint8 or of floats, not {values_np.dtype}", where)
    # Also where one is not a number.
    if not values_np.size or not (values_np.min() >= 0 and values_np.max() <= 1):
        raise InvalidRequestError(f"{where} must be an array of uint8, or of floats from 0 to 1", where)
    return np.rint(values_np.astype(np.float32) * 255).astype(np.uint8)

"""A picture as models see it: RGB, upright, without transparency."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.media import IMAGE
from cadence.media.limits import DEFAULT_LIMITS, MediaLimits

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, eq=False)
class Picture:
    pixels_np: Pixels  # [H, W, 3]
    digest: str  # of shape and bytes, as hexadecimal digits; or what the user says stands for them

    @classmethod
    def of(cls, pixels_np: Pixels, digest: str = "") -> Picture:
        pixels_np = np.ascontiguousarray(pixels_np)
        return cls(pixels_np, digest or digest_of(IMAGE, pixels_np))

    @property
    def num_pixels(self) -> int:
        return self.pixels_np.shape[0] * self.pixels_np.shape[1]


def digest_of(kind: str, values_np: Pixels, more: str = "") -> str:
    digest = sha256(f"{kind}/{values_np.shape}/{more}/".encode())
    digest.update(np.ascontiguousarray(values_np))
    return digest.hexdigest()


def as_picture(value: Any, where: str, limits: MediaLimits = DEFAULT_LIMITS, digest: str = "") -> Picture:
    """value: a `Picture`, a picture of Pillow's, an array ([H, W, 3], [H, W, 4] or [H, W]: uint8, or floats in [0, 1]),
    a file's bytes or its path. where: the part of the request that holds it."""
    from cadence.media.decode import decode_picture, upright_rgb

    if isinstance(value, Picture):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_picture(bytes(value), where, limits, digest)
    if isinstance(value, (str, Path)):
        return decode_picture(read_file(Path(value), IMAGE, where, limits), where, limits, digest)
    if is_pillow(value):
        return Picture.of(upright_rgb(value, where, limits), digest)
    return Picture.of(rgb_of_array(as_array(value, where), where, limits), digest)


def is_pillow(value: Any) -> bool:
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


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


def read_file(path: Path, kind: str, where: str, limits: MediaLimits) -> bytes:
    """That the program itself names. What is too large is not read."""
    try:
        if not path.is_file():
            raise InvalidRequestError(f"{where}: {path}: no such file", where)
        limits.check_bytes(kind, path.stat().st_size, where)
        return path.read_bytes()
    except (OSError, ValueError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        raise InvalidRequestError(f"{where}: {path}: cannot be read: {error}", where) from None

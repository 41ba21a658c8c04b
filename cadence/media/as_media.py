"""Whatever a program calls a picture or a video, as one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.media.arrays import as_array, as_bytes, rgb_of_array
from cadence.media.decode import decode_picture, upright_rgb
from cadence.media.limits import DEFAULT_LIMITS, MediaLimits
from cadence.media.picture import Picture
from cadence.media.video import DEFAULT_SAMPLING, Sampling, Video, check_frames, even_times, of_pictures
from cadence.media.video_decode import decode_video


def as_picture(value: Any, where: str, limits: MediaLimits = DEFAULT_LIMITS, digest: str = "") -> Picture:
    """value: a `Picture`, a picture of Pillow's, an array ([H, W, 3], [H, W, 4] or [H, W]: uint8, or floats in [0, 1]),
    a file's bytes or its path. where: the part of the request that holds it."""
    if isinstance(value, Picture):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_picture(bytes(value), where, limits, digest)
    if isinstance(value, (str, Path)):
        return decode_picture(read_file(Path(value), IMAGE, where, limits), where, limits, digest)
    if _is_pillow(value):
        return Picture.of(upright_rgb(value, where, limits), digest)
    return Picture.of(rgb_of_array(as_array(value, where), where, limits), digest)


def as_video(
    value: Any,
    where: str,
    limits: MediaLimits = DEFAULT_LIMITS,
    digest: str = "",
    sampling: Sampling = DEFAULT_SAMPLING,
) -> Video:
    """value: a `Video`, an array [n, H, W, 3], a list of pictures in order, a file's bytes or its path. Frames that
    come as such are all kept."""
    if isinstance(value, Video):
        return value
    if isinstance(value, (str, Path)):
        value = read_file(Path(value), VIDEO, where, limits)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return decode_video(bytes(value), where, limits, digest, sampling)
    if isinstance(value, (list, tuple)):
        pictures = [as_picture(one, f"{where}[{number}]", limits) for number, one in enumerate(value)]
        return of_pictures(pictures, where, limits, digest)
    return _of_array(as_array(value, where), where, limits, digest)


def _is_pillow(value: Any) -> bool:
    return any(base.__module__ == "PIL.Image" for base in type(value).__mro__)


def _of_array(values_np: npt.NDArray[Any], where: str, limits: MediaLimits, digest: str) -> Video:
    if values_np.ndim != 4 or values_np.shape[3] != 3:
        message = f"{where} must be an array [frames, H, W, 3]; its shape is {list(values_np.shape)}"
        raise InvalidRequestError(message, where)
    count, height, width, _ = values_np.shape
    check_frames(count, where, limits)
    limits.check_size(width, height, where)
    limits.check_total(count * height * width, where)
    return Video.of(as_bytes(values_np, where), even_times(count), digest)


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

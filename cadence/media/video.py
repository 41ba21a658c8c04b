"""A video as models see it: some of its frames, and when they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.media import VIDEO
from cadence.media.limits import DEFAULT_LIMITS, MediaLimits
from cadence.media.picture import Picture, as_array, as_bytes, as_picture, digest_of, read_file

FRAMES_PER_SECOND = 2.0  # of frames that come without their times


@dataclass(frozen=True, slots=True, eq=False)
class Video:
    frames_np: npt.NDArray[np.uint8]  # [n, H, W, 3]
    times: tuple[float, ...]  # [n] seconds after its beginning
    digest: str  # of shape, bytes and times, as hexadecimal digits; or what the user says stands for them

    @classmethod
    def of(cls, frames_np: npt.NDArray[np.uint8], times: Sequence[float], digest: str = "") -> Video:
        frames_np = np.ascontiguousarray(frames_np)
        rounded = tuple(round(float(time), 6) for time in times)
        return cls(frames_np, rounded, digest or digest_of(VIDEO, frames_np, str(rounded)))

    @property
    def num_pixels(self) -> int:
        count, height, width, _ = self.frames_np.shape
        return count * height * width


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which frames of a file are kept, evenly over its length."""

    num_frames: int = 32  # at most; -1 = all
    fps: float = 0.0  # at most so many of each second; 0 = whatever num_frames gives


DEFAULT_SAMPLING = Sampling()


def as_video(
    value: Any,
    where: str,
    limits: MediaLimits = DEFAULT_LIMITS,
    digest: str = "",
    sampling: Sampling = DEFAULT_SAMPLING,
) -> Video:
    """value: a `Video`, an array [n, H, W, 3], a list of pictures in order, a file's bytes or its path. Frames that
    come as such are all kept."""
    from cadence.media.video_decode import decode_video

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


def of_pictures(pictures: Sequence[Picture], where: str, limits: MediaLimits, digest: str = "") -> Video:
    check_frames(len(pictures), where, limits)
    if len({picture.pixels_np.shape for picture in pictures}) > 1:
        raise InvalidRequestError(f"{where}: the frames of a video must be of one size", where)
    limits.check_total(sum(picture.num_pixels for picture in pictures), where)
    frames_np = np.stack([picture.pixels_np for picture in pictures])
    return Video.of(frames_np, _even_times(len(pictures)), digest)


def check_frames(count: int, where: str, limits: MediaLimits) -> None:
    if not 1 <= count <= limits.video_frames:
        raise InvalidRequestError(f"{where}: a video must have 1 to {limits.video_frames} frames, not {count}", where)


def _of_array(values_np: npt.NDArray[Any], where: str, limits: MediaLimits, digest: str) -> Video:
    if values_np.ndim != 4 or values_np.shape[3] != 3:
        message = f"{where} must be an array [frames, H, W, 3]; its shape is {list(values_np.shape)}"
        raise InvalidRequestError(message, where)
    count, height, width, _ = values_np.shape
    check_frames(count, where, limits)
    limits.check_size(width, height, where)
    limits.check_total(count * height * width, where)
    return Video.of(as_bytes(values_np, where), _even_times(count), digest)


def _even_times(count: int) -> list[float]:
    return [number / FRAMES_PER_SECOND for number in range(count)]

"""A video as models see it: some of its frames, and when they are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import VIDEO
from cadence.media.limits import MediaLimits
from cadence.media.picture import Picture, digest_of

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

    def paced(self, fps: float) -> Video:
        """The same frames, so many of a second."""
        return Video.of(self.frames_np, [number / fps for number in range(len(self.frames_np))])

    @property
    def num_pixels(self) -> int:
        count, height, width, _ = self.frames_np.shape
        return int(count * height * width)


@dataclass(frozen=True, slots=True)
class Sampling:
    """Which frames of a file are kept, evenly over its length."""

    num_frames: int = 32  # at most; -1 = all
    fps: float = 0.0  # at most so many of each second; 0 = whatever num_frames gives


DEFAULT_SAMPLING = Sampling()


def of_pictures(pictures: Sequence[Picture], where: str, limits: MediaLimits, digest: str = "") -> Video:
    check_frames(len(pictures), where, limits)
    if len({picture.pixels_np.shape for picture in pictures}) > 1:
        raise InvalidRequestError(f"{where}: the frames of a video must be of one size", where)
    limits.check_total(sum(picture.num_pixels for picture in pictures), where)
    frames_np = np.stack([picture.pixels_np for picture in pictures])
    return Video.of(frames_np, even_times(len(pictures)), digest)


def check_frames(count: int, where: str, limits: MediaLimits) -> None:
    if not 1 <= count <= limits.video_frames:
        raise InvalidRequestError(f"{where}: a video must have 1 to {limits.video_frames} frames, not {count}", where)


def even_times(count: int) -> list[float]:
    return [number / FRAMES_PER_SECOND for number in range(count)]

"""A sound as models hear it: samples of one channel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.audio.decode import RATE, decode_audio
from cadence.audio.errors import AudioError
from cadence.audio.limits import AudioLimits
from cadence.core.checks import integer
from cadence.core.errors import InvalidRequestError
from cadence.media.limits import MediaLimits


@dataclass(frozen=True, slots=True, eq=False)
class Sound:
    samples_np: npt.NDArray[np.float32]  # [n], n > 0, finite
    rate: int  # samples per second

    @property
    def num_pixels(self) -> int:
        """That take the memory of its samples."""
        return self.samples_np.nbytes // 3


def as_sound(value: Any, where: str) -> Sound:
    """value: a `Sound`, or a pair of samples [n] and their rate. where: the part of the request that holds it."""
    if isinstance(value, Sound):
        return value
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidRequestError(f"{where} must be a pair (samples, rate)", where)
    samples, rate = value
    try:
        samples_np = np.asarray(samples, dtype=np.float32)
    except (TypeError, ValueError):
        raise InvalidRequestError(f"{where} must have samples that are numbers", where) from None
    if samples_np.ndim != 1 or not len(samples_np):
        message = f"{where} must have samples of one channel, [n]; got {list(samples_np.shape)}"
        raise InvalidRequestError(message, where)
    if not np.isfinite(samples_np).all():
        raise InvalidRequestError(f"{where} has samples that are not finite", where)
    return Sound(samples_np, integer(f"{where} rate", rate, low=1))


def decode_sound(data: bytes, where: str, limits: MediaLimits) -> Sound:
    """A file of any format that recordings have."""
    allowed = AudioLimits(num_bytes=limits.audio_bytes, seconds=limits.audio_seconds, min_seconds=1 / RATE)
    try:
        return Sound(decode_audio(data, allowed), RATE)
    except AudioError as error:
        raise InvalidRequestError(f"{where}: {error}", where) from None

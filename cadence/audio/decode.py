"""A recording's bytes -> samples: mono, float32, at the rate that models want. Untrusted input.

What a file is, its first bytes say; the library is told, and probes nothing: of its hundred formats some are playlists
that open other files. Plain wav files need no library.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cadence.audio.errors import AudioError
from cadence.audio.library import decode_with_library
from cadence.audio.limits import DEFAULT_LIMITS, AudioLimits
from cadence.audio.resample import resample
from cadence.audio.wav import is_wav, read_wav

FloatArray = npt.NDArray[np.float32]

RATE = 16_000  # samples a second, of all speech models here
READ = "wav, flac, mp3, ogg, m4a, mp4 and webm"


def decode_audio(data: bytes, limits: AudioLimits = DEFAULT_LIMITS, rate: int = RATE) -> FloatArray:
    """A whole file -> [n] at `rate` samples a second. Raises AudioError."""
    limits.check_bytes(len(data))
    container = container_of(data[:64])
    plain = read_wav(data, limits) if container == "wav" else None
    if plain is not None:
        samples_np = resample(plain[0], plain[1], rate)
    else:
        samples_np = decode_with_library(data, container, limits, rate)
    return _checked(samples_np, limits, rate)


def read_audio(path: Path, limits: AudioLimits = DEFAULT_LIMITS, rate: int = RATE) -> FloatArray:
    """The same, of a file on disk. What is too large is not read."""
    try:
        if not path.is_file():
            raise AudioError(f"{path}: no such file.")
        limits.check_bytes(path.stat().st_size)
        data = path.read_bytes()
    except OSError as error:
        raise AudioError(f"{path}: cannot be read: {error.strerror or error}.") from None
    return decode_audio(data, limits, rate)


def container_of(head: bytes) -> str:
    """What the library calls the format of a file that begins so."""
    if is_wav(head):
        return "wav"
    for name, magic in (("flac", b"fLaC"), ("ogg", b"OggS"), ("matroska", b"\x1a\x45\xdf\xa3"), ("mp3", b"ID3")):
        if head.startswith(magic):
            return name
    if head[4:8] == b"ftyp":
        return "mov"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:  # the head of a frame without a file's
        return "aac" if head[1] & 0x06 == 0 else "mp3"
    raise AudioError(f"The file is no audio of a format that is read here: {READ}.")


def _checked(samples_np: FloatArray, limits: AudioLimits, rate: int) -> FloatArray:
    limits.check_seconds(len(samples_np) / rate)
    if len(samples_np) < limits.min_seconds * rate:
        found = f"it has {len(samples_np)} samples at {rate} Hz"
        raise AudioError(f"The audio must be at least {limits.min_seconds:g} seconds long; {found}.")
    if not math.isfinite(float(samples_np.max()) - float(samples_np.min())):
        raise AudioError("The audio has samples that are not numbers.")
    return samples_np

"""Plain wav files: integers and floats that are not compressed. Untrusted input."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cadence.audio.errors import AudioError
from cadence.audio.limits import AudioLimits

FloatArray = npt.NDArray[np.float32]

_INTEGERS, _FLOATS, _EXTENSIBLE = 1, 3, 0xFFFE
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)  # of a file that was written into a pipe
_BLOCK = 1 << 18  # frames that are converted at once
_TYPES = {(_INTEGERS, 8), (_INTEGERS, 16), (_INTEGERS, 24), (_INTEGERS, 32), (_FLOATS, 32), (_FLOATS, 64)}


@dataclass(frozen=True, slots=True)
class WavFormat:
    """What the chunk "fmt " says."""

    code: int
    channels: int
    rate: int  # frames a second
    bits: int  # of a sample
    frame_bytes: int  # of one sample of each channel

    @property
    def is_plain(self) -> bool:
        return (self.code, self.bits) in _TYPES and self.frame_bytes == self.channels * self.bits // 8


def is_wav(head: bytes) -> bool:
    return head[:4] == b"RIFF" and head[8:12] == b"WAVE"


def read_wav(data: bytes, limits: AudioLimits) -> tuple[FloatArray, int] | None:
    """-> samples [n] of all channels' mean, and their rate; None where it holds something else than plain samples."""
    form, body = _chunks(data)
    if not form.is_plain:
        return None
    limits.check_stream(form.rate, form.channels)
    count = len(body) // form.frame_bytes
    limits.check_seconds(count / form.rate)
    return _mono(body, form, count), form.rate


def _chunks(data: bytes) -> tuple[WavFormat, memoryview]:
    """The format, and the bytes of samples."""
    view, at, form = memoryview(data), 12, None
    while at + 8 <= len(view):
        name, size = bytes(view[at : at + 4]), int.from_bytes(view[at + 4 : at + 8], "little")
        start = at + 8
        if name == b"fmt ":
            form = _format(bytes(view[start : start + min(size, 40)]))
        if name == b"data":
            if form is None:
                raise AudioError("The wav file has samples before it says what they are.")
            if size not in _UNKNOWN_SIZES and start + size > len(view):
                missing = start + size - len(view)
                raise AudioError(f"The wav file is cut short: {missing} bytes of its samples are missing.")
            return form, view[start : len(view) if size in _UNKNOWN_SIZES else start + size]
        at = start + size + size % 2
    raise AudioError("The wav file has no samples: the chunk that holds them is missing.")


def _format(chunk: bytes) -> WavFormat:
    if len(chunk) < 16:
        raise AudioError("The wav file's format chunk is cut short.")
    code, bits = int.from_bytes(chunk[:2], "little"), int.from_bytes(chunk[14:16], "little")
    if code == _EXTENSIBLE and len(chunk) >= 26:
        code = int.from_bytes(chunk[24:26], "little")
    return WavFormat(
        code=code,
        channels=int.from_bytes(chunk[2:4], "little"),
        rate=int.from_bytes(chunk[4:8], "little"),
        bits=bits,
        frame_bytes=int.from_bytes(chunk[12:14], "little"),
    )


def _mono(body: memoryview, form: WavFormat, count: int) -> FloatArray:
    made_np = np.empty(count, np.float32)
    for start in range(0, count, _BLOCK):
        end = min(start + _BLOCK, count)
        block = body[start * form.frame_bytes : end * form.frame_bytes]
        made_np[start:end] = _floats(block, form).reshape(end - start, form.channels).mean(axis=1)
    return made_np


def _floats(block: memoryview, form: WavFormat) -> npt.NDArray[np.floating]:
    """Bytes -> samples in [-1, 1], in file order."""
    if form.code == _FLOATS:
        return np.frombuffer(block, f"<f{form.bits // 8}")
    if form.bits == 8:
        return (np.frombuffer(block, np.uint8).astype(np.float32) - 128) / 128
    if form.bits == 24:
        wide_np = np.zeros((len(block) // 3, 4), np.uint8)
        wide_np[:, 1:] = np.frombuffer(block, np.uint8).reshape(-1, 3)
        return wide_np.view("<i4")[:, 0] / np.float64(2**31)
    return np.frombuffer(block, f"<i{form.bits // 8}").astype(np.float32) / np.float32(2 ** (form.bits - 1))

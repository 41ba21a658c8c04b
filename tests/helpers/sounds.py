"""Recordings for tests, as files."""

from __future__ import annotations

import io
import wave

import numpy as np


def sound(seconds: float = 1.25, rate: int = 8000) -> bytes:
    """A tone, as a wav file of 16 bits."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(rate)
        tone = np.sin(np.arange(int(seconds * rate)) * 0.3) * 9000
        out.writeframes(tone.astype("<i2").tobytes())
    return file.getvalue()

"""Recordings made of numbers: signals, wav files byte by byte, and files that a library encodes."""

from __future__ import annotations

import io
import struct

import av
import numpy as np

KINDS = {  # kind -> container, codec, rate that the codec takes
    "flac": ("flac", "flac", 16_000),
    "mp3": ("mp3", "libmp3lame", 44_100),
    "ogg": ("ogg", "libopus", 48_000),
    "m4a": ("ipod", "aac", 44_100),
    "webm": ("webm", "libopus", 48_000),
}


def tone(seconds: float, rate: int = 16_000, hertz: float = 440.0) -> np.ndarray:
    return (0.5 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


def wav_file(samples_np: np.ndarray, rate: int = 16_000, code: int = 1, bits: int = 16, **lies: int) -> bytes:
    """samples [n] or [n, channels] in [-1, 1]. `lies`: what the head says instead of `rate`, `channels`, `size`."""
    channels = 1 if samples_np.ndim == 1 else samples_np.shape[1]
    if code == 3:
        body = samples_np.astype(f"<f{bits // 8}").tobytes()
    elif bits == 8:
        body = (samples_np * 127 + 128).astype(np.uint8).tobytes()
    else:
        whole_np = (samples_np.astype(np.float64) * (2 ** (bits - 1) - 1)).astype("<i4")
        body = whole_np.view(np.uint8).reshape(-1, 4)[:, : bits // 8].tobytes()
    frame = channels * bits // 8
    said_rate, said_channels = lies.get("rate", rate), lies.get("channels", channels)
    form = struct.pack("<HHIIHH", code, said_channels, said_rate, said_rate * frame & 0xFFFFFFFF, frame, bits)
    size = lies.get("size", len(body))
    head = b"RIFF" + struct.pack("<I", 36 + len(body) & 0xFFFFFFFF) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", size) + body


def encoded(kind: str, samples_np: np.ndarray) -> bytes:
    """samples [n] at the kind's rate -> a file."""
    container, codec, rate = KINDS[kind]
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container) as opened:
        stream = opened.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray((samples_np[None] * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts = rate, 0
        resampler = av.AudioResampler(format=stream.format, layout="mono", rate=rate, frame_size=stream.frame_size)
        for part in (frame, None):
            for piece in resampler.resample(part):
                opened.mux(stream.encode(piece))
        opened.mux(stream.encode(None))
    return buffer.getvalue()

"""Files that are compressed, decoded by PyAV (FFmpeg's libraries) piece by piece."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.audio.errors import AudioError
from cadence.audio.limits import AudioLimits
from cadence.core.shown import cut

FloatArray = npt.NDArray[np.float32]

# What speech comes in. FFmpeg knows hundreds; each is code that reads untrusted bytes.
_CODECS = ("aac", "alac", "flac", "mp3", "opus", "vorbis", "pcm_", "adpcm_")
_KNOWS_LENGTH = ("flac", "matroska", "mov", "wav")  # formats whose head says how long the sound is
_PACKETS_A_SECOND = 2_000  # at most; frames of 2.5 ms are the shortest
_CUT_SHORT = 0.95  # of the length that the head says


def decode_with_library(data: bytes, container: str, limits: AudioLimits, rate: int) -> FloatArray:
    """-> [n] at `rate`. Stops reading at the first sample beyond a limit."""
    av = _import_av()
    try:
        with av.open(io.BytesIO(data), format=container, metadata_errors="replace") as opened:
            stream = _audio_stream(opened)
            stated = _stated_seconds(opened, stream, container)
            if container != "wav":  # of one that was written into a pipe, the size is a placeholder
                limits.check_seconds(stated)
            resampler = av.AudioResampler(format="flt", layout="mono", rate=rate)
            samples_np = _gather(_blocks(opened, stream, resampler, limits), limits, rate)
    except (av.FFmpegError, ValueError, OverflowError, EOFError, MemoryError) as error:
        if isinstance(error, AudioError):
            raise
        raise AudioError(f"The {container} file cannot be decoded: {cut(_reason(error))}.") from None
    if len(samples_np) < stated * rate * _CUT_SHORT - rate // 2:
        seconds = len(samples_np) / rate
        raise AudioError(f"The {container} file is cut short: {seconds:.1f} of its {stated:.1f} seconds are there.")
    return samples_np


def _import_av() -> Any:
    try:
        import av
    except ImportError:
        message = "Audio other than plain wav needs the package av: pip install 'cadence-llm[audio]'."
        raise AudioError(message) from None
    av.logging.set_level(av.logging.PANIC)  # what it has to say comes as exceptions
    return av


def _audio_stream(opened: Any) -> Any:
    if not opened.streams.audio:
        raise AudioError("The file has no audio in it.")
    stream = opened.streams.audio[0]
    codec = stream.codec_context
    if codec is None or not codec.name.startswith(_CODECS):
        name = "unknown" if codec is None else codec.name
        raise AudioError(f"The audio is coded as {name}, which is not read here.")
    codec.thread_count = 1
    return stream


def _stated_seconds(opened: Any, stream: Any, container: str) -> float:
    """How long the head says it is; 0 = it does not say."""
    if container not in _KNOWS_LENGTH:
        return 0.0
    if stream.duration and stream.time_base:
        return max(float(stream.duration * stream.time_base), 0.0)
    return max(float(opened.duration or 0) / 1e6, 0.0)


def _blocks(opened: Any, stream: Any, resampler: Any, limits: AudioLimits) -> Iterator[FloatArray]:
    """Samples as they are decoded. Damaged packets are left out, as players do."""
    most, previous = int(limits.seconds * _PACKETS_A_SECOND) + 1000, None
    for count, packet in enumerate(opened.demux(stream)):
        if count > most:
            raise AudioError(f"The file has more than {most} packets.")
        for frame in _frames(packet):
            limits.check_stream(frame.sample_rate, len(frame.layout.channels))
            shape = frame.sample_rate, frame.layout.name, frame.format.name
            if previous not in (None, shape):
                raise AudioError("The audio changes its sample rate or channels within the file.")
            previous = shape
            for made in resampler.resample(frame):
                yield made.to_ndarray()[0]
    for made in resampler.resample(None) if previous else ():
        yield made.to_ndarray()[0]


def _frames(packet: Any) -> list[Any]:
    import av

    try:
        return list(packet.decode())
    except (av.error.InvalidDataError, av.error.EOFError):
        return []


def _gather(blocks: Iterator[FloatArray], limits: AudioLimits, rate: int) -> FloatArray:
    found, count = [np.zeros(0, np.float32)], 0
    for block_np in blocks:
        count += len(block_np)
        limits.check_seconds(count / rate)
        found.append(block_np)
    return np.concatenate(found)


def _reason(error: Exception) -> str:
    return str(getattr(error, "strerror", "") or error or type(error).__name__).strip().rstrip(".")

"""A video's bytes -> some of its frames, by PyAV. Untrusted input: the container is told by its first bytes, and is one
of few; of FFmpeg's hundred formats some are playlists that open other files.

The file is gone through twice: its packets say when frames are shown, which decides which are kept; then it is decoded
up to the last of these. Sizes are checked by the stream's head and at every frame, time at every frame.
"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import VIDEO
from cadence.core.shown import cut
from cadence.media.decode import decode_picture
from cadence.media.header import format_of
from cadence.media.library import pyav
from cadence.media.limits import DEFAULT_LIMITS, MediaLimits
from cadence.media.video import DEFAULT_SAMPLING, Sampling, Video, of_pictures

READ = "mp4, mov, webm, mkv and avi"
_CODECS = ("h264", "hevc", "vp8", "vp9", "av1", "libdav1d", "libaom-av1", "libvpx", "mpeg4", "mpeg2video", "mjpeg")
_PACKETS_A_SECOND = 240
_CUT_SHORT = 0.9  # of the packets, or of the seconds, that a head tells of
_EPSILON = 1e-3  # of a frame: times are rounded
_LAST_FRAME_S = 0.2  # that the last frame is shown, at most


def decode_video(
    data: bytes,
    where: str,
    limits: MediaLimits = DEFAULT_LIMITS,
    digest: str = "",
    sampling: Sampling = DEFAULT_SAMPLING,
    num_pixels: int = 0,
) -> Video:
    """where: the part of the request that holds it; num_pixels: that the prompt has before it. A picture is a video of
    one frame."""
    limits.check_bytes(VIDEO, len(data), where)
    if format_of(data[:16]):
        return of_pictures([decode_picture(data, where, limits, num_pixels=num_pixels)], where, limits, digest)
    container, av = _container(data[:16], where), pyav(where)
    try:
        times = _shown_at(av, data, container, where, limits)
        kept = _kept(times, sampling, limits)
        frames = _frames(av, data, container, where, limits)
        frames_np, found = _gathered(frames, [times[place] for place in kept], kept, where, limits, num_pixels)
        return Video.of(frames_np, found, digest)
    except (av.FFmpegError, ValueError, OverflowError, EOFError, MemoryError) as error:
        if isinstance(error, InvalidRequestError):
            raise
        reason = cut(str(getattr(error, "strerror", "") or error or type(error).__name__)).strip().rstrip(".")
        raise InvalidRequestError(f"{where}: the {container} file cannot be decoded: {reason}", where) from None


def _container(head: bytes, where: str) -> str:
    """What the library calls the format of a file that begins so."""
    if head[4:8] == b"ftyp":
        return "mov"
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return "matroska"
    if head[:4] == b"RIFF" and head[8:12] == b"AVI ":
        return "avi"
    raise InvalidRequestError(f"{where}: this is no video of a format that is read here: {READ}", where)


def _stream(opened: Any, where: str, limits: MediaLimits) -> Any:
    if not opened.streams.video:
        raise InvalidRequestError(f"{where}: the file has no video in it", where)
    stream = opened.streams.video[0]
    codec = stream.codec_context
    if codec is None or not codec.name.startswith(_CODECS):
        name = "unknown" if codec is None else codec.name
        raise InvalidRequestError(f"{where}: the video is coded as {name}, which is not read here", where)
    limits.check_size(codec.width, codec.height, where)
    codec.thread_count = 1
    return stream


def _shown_at(av: Any, data: bytes, container: str, where: str, limits: MediaLimits) -> list[float]:
    """[frames] seconds after the first, ascending."""
    with av.open(io.BytesIO(data), format=container, metadata_errors="replace") as opened:
        stream = _stream(opened, where, limits)
        stated, seconds = stream.frames, float(opened.duration or 0) / 1e6
        times: list[float] = []
        for packet in opened.demux(stream):
            if packet.size and not packet.is_discard:
                stamp = packet.pts if packet.pts is not None else packet.dts
                times.append(float(stamp * packet.time_base) if stamp is not None else float(len(times)))
                if len(times) > limits.video_seconds * _PACKETS_A_SECOND:
                    raise InvalidRequestError(f"{where}: the video has more than {len(times) - 1} frames", where)
    if not times:
        raise InvalidRequestError(f"{where}: the video has no frames", where)
    times.sort()
    length = times[-1] - times[0]
    # A head tells of frames, or of seconds alone, among them those of the last frame.
    if len(times) < stated * _CUT_SHORT - 1 or (not stated and length < seconds * _CUT_SHORT - _LAST_FRAME_S):
        message = f"{where}: the video is cut short: its head tells of more frames than are there"
        raise InvalidRequestError(message, where)
    if not length <= limits.video_seconds:
        raise InvalidRequestError(f"{where}: the video must be at most {limits.video_seconds:g} seconds long", where)
    return [stamp - times[0] for stamp in times]


def _kept(times: Sequence[float], sampling: Sampling, limits: MediaLimits) -> list[int]:
    """Places of the frames that are kept, ascending."""
    count = len(times) if sampling.num_frames < 0 else min(sampling.num_frames, len(times))
    if sampling.fps > 0:
        length = times[-1] * len(times) / max(len(times) - 1, 1)  # with the time that the last frame is shown
        count = min(count, max(int(length * sampling.fps + _EPSILON), 1))
    count = max(min(count, limits.video_frames), 1)
    return [int(place) for place in np.linspace(0, len(times) - 1, count)]


def _frames(av: Any, data: bytes, container: str, where: str, limits: MediaLimits) -> Iterator[Any]:
    """As they are shown."""
    end = time.monotonic() + limits.decode_seconds
    with av.open(io.BytesIO(data), format=container, metadata_errors="replace") as opened:
        for frame in opened.decode(_stream(opened, where, limits)):
            limits.check_size(frame.width, frame.height, where)
            if time.monotonic() > end:
                seconds = f"{limits.decode_seconds:g} seconds"
                raise InvalidRequestError(f"{where}: the video takes more than {seconds} to decode", where)
            yield frame


def _gathered(
    frames: Iterator[Any], times: Sequence[float], kept: Sequence[int], where: str, limits: MediaLimits, before: int
) -> tuple[npt.NDArray[np.uint8], list[float]]:
    """[n, H, W, 3] of the frames at the places `kept`, and when these are shown."""
    made_np: npt.NDArray[np.uint8] | None = None
    wanted, count = list(kept), 0
    for place, frame in enumerate(frames):
        if count == len(wanted):
            break
        if place != wanted[count]:
            continue
        rgb_np = _upright(frame)
        if made_np is None:
            limits.check_total(before + len(wanted) * rgb_np.shape[0] * rgb_np.shape[1], where)
            made_np = np.empty((len(wanted), *rgb_np.shape), np.uint8)
        if rgb_np.shape != made_np.shape[1:]:
            raise InvalidRequestError(f"{where}: the frames of a video must be of one size", where)
        made_np[count] = rgb_np
        count += 1
    if made_np is None or count < len(wanted) * _CUT_SHORT:
        message = f"{where}: the video is damaged: {count} of {len(wanted)} frames can be decoded"
        raise InvalidRequestError(message, where)
    return made_np[:count], list(times[:count])


def _upright(frame: Any) -> npt.NDArray[np.uint8]:
    rgb_np: npt.NDArray[np.uint8] = frame.to_ndarray(format="rgb24")
    turns = round(float(getattr(frame, "rotation", 0) or 0) / 90) % 4  # anticlockwise
    return np.ascontiguousarray(np.rot90(rgb_np, turns)) if turns else rgb_np

"""Qwen2-VL and Qwen2.5-VL: pictures keep their shape and, within limits, their size; of a video, frames go by pairs.

Tokens stand by time, line and column. What follows a picture or a video goes on after the last of its times, lines and
columns. (So it was trained. In versions of transformers from 5 on, what follows a video goes on after its lines and
columns alone.)
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from cadence.config.files.qwen_vision import read_qwen_vision
from cadence.core.errors import InvalidRequestError, ModelFileError
from cadence.core.inputs.media import IMAGE, MOST_SEGMENTS, VIDEO, MediaItem
from cadence.core.inputs.pixel_means import OPENAI_MEAN, OPENAI_STD
from cadence.media.family import Content, FamilyFiles, Prepared
from cadence.media.picture import Picture
from cadence.media.pixels import PixelNumbers
from cadence.media.processor_config import VIDEOS, read_processor_config
from cadence.media.resize import BICUBIC, Pixels, resized
from cadence.media.video import Video

_MOST_RATIO = 200  # of a picture's sides
_MOST_PIXELS = 1 << 28
_VIDEO_TOKENS = 115_200  # of all frames of a video: nine tenths of the length that the models were made for
_SMALLEST = 1.05  # times the least pixels, that each of a video's frames may have whatever their number
_SIZES = {  # pixels, at least and at most
    IMAGE: {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 1280},
    VIDEO: {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
}
_PADS = {IMAGE: "<|image_pad|>", VIDEO: "<|video_pad|>"}
_TOKENS = {IMAGE: ("image_token_id", 151655), VIDEO: ("video_token_id", 151656)}


class QwenFamily:
    """Implements `MediaFamily`. A content's grid: 1, its patches each way; of a pair of frames, then, its number in the
    video, and its time after the first."""

    both_ways = False

    def __init__(self, files: FamilyFiles) -> None:
        self._vision = read_qwen_vision(files.config, (files.config.get("architectures") or [""])[0])
        self.placeholders: Mapping[str, str] = {kind: _between_marks(pad) for kind, pad in _PADS.items()}
        self.token_ids = {
            kind: files.vector_token((name,), usual, _PADS[kind]).number for kind, (name, usual) in _TOKENS.items()
        }
        self._pixels: dict[str, tuple[int, int]] = {}
        self._resample: dict[str, int] = {}
        self._numbers: dict[str, PixelNumbers] = {}
        for kind, section in ((IMAGE, "image_processor"), (VIDEO, VIDEOS)):
            settings = read_processor_config(files, {"size": _SIZES[kind]}, section)
            self._check(settings)
            self._pixels[kind] = _pixels(settings)
            self._numbers[kind] = PixelNumbers.read(settings, OPENAI_MEAN, OPENAI_STD)
            resample = settings.get("resample")
            self._resample[kind] = BICUBIC if resample is None else resample
        self.max_length: Mapping[str, int] = {
            kind: most_cells(*pixels, self._vision.cell) for kind, pixels in self._pixels.items()
        }

    def _check(self, settings: Mapping[str, Any]) -> None:
        """What prepares pictures is of the same model."""
        own = {"patch_size": self._vision.patch, "merge_size": self._vision.merge, "do_resize": True}
        for name, value in own.items():
            if settings.get(name, value) != value:
                message = f"preprocessor_config.json: {name} must be {value} for this model, found {settings[name]!r}"
                raise ModelFileError(message, name)

    def prepare(self, kind: str, medium: Picture | Video) -> Prepared:
        if isinstance(medium, Video):
            return self._video(medium.frames_np, medium.times)
        height, width = self._size(kind, medium.pixels_np.shape, self._pixels[kind])
        pixels_np = resized(medium.pixels_np, height, width, self._resample[kind])[None]
        grid = (1, height // self._vision.patch, width // self._vision.patch)
        length = height * width // self._vision.cell**2
        content = Content(self._numbers[kind].of(pixels_np), grid, length)
        return Prepared((content,), _between_marks(_PADS[kind] * length))

    def _video(self, frames_np: npt.NDArray[np.uint8], times: Sequence[float]) -> Prepared:
        vision, count = self._vision, len(frames_np)
        height, width = self._size(VIDEO, frames_np.shape[1:], self._frame_pixels(count))
        resized_np = [resized(frame_np, height, width, self._resample[VIDEO]) for frame_np in frames_np]
        length = height * width // vision.cell**2
        moments = self._moments(times, -(-count // vision.frames), length)
        contents = []
        for number, moment in enumerate(moments):
            pair: list[Pixels] = resized_np[number * vision.frames : (number + 1) * vision.frames]
            grid = (1, height // vision.patch, width // vision.patch, number, moment)
            contents.append(Content(self._numbers[VIDEO].of(np.stack(pair)), grid, length))
        return Prepared(tuple(contents), _between_marks(_PADS[VIDEO] * (length * len(contents))))

    def _frame_pixels(self, count: int) -> tuple[int, int]:
        """Limits of one of so many frames."""
        low, high = self._pixels[VIDEO]
        share = _VIDEO_TOKENS * self._vision.cell**2 * self._vision.frames // count
        return low, max(min(high, share), int(low * _SMALLEST))

    def _moments(self, times: Sequence[float], count: int, length: int) -> list[int]:
        """Of `count` pairs of frames: their positions in time, the first at 0."""
        vision = self._vision
        if not vision.tokens_per_second or len(times) < 2:
            return list(range(count))
        apart = (times[-1] - times[0]) / (len(times) - 1) * vision.frames  # seconds
        step = apart * vision.tokens_per_second
        if not 0 <= step <= length:  # no token stands further on than there are tokens before it
            most = length / vision.tokens_per_second / vision.frames
            message = f"the frames of a video are {apart / vision.frames:.3g} seconds apart; at most {most:.3g} may be"
            raise InvalidRequestError(f"{message} between two of their size", f"multi_modal_data.{VIDEO}")
        return (np.arange(count, dtype=np.float32) * np.float32(step)).astype(np.int64).tolist()

    def _size(self, kind: str, shape: Sequence[int], pixels: tuple[int, int]) -> tuple[int, int]:
        height, width = shape[:2]
        if max(height, width) > _MOST_RATIO * min(height, width):
            message = f"a side of the {kind} is more than {_MOST_RATIO} times the other: {width} x {height} pixels"
            raise InvalidRequestError(message, f"multi_modal_data.{kind}")
        return size_within(height, width, self._vision.cell, pixels)

    def rope_segments(self, items: Sequence[MediaItem]) -> npt.NDArray[np.int32]:
        segments: list[tuple[int, ...]] = []
        token = place = origin = 0  # where the next token stands; where the last picture or video began
        for item in items:
            if item.kind not in _PADS:
                continue
            number, moment = item.grid[3:] or (0, 0)
            lines, columns = (patches // self._vision.merge for patches in item.grid[1:3])
            if not number:
                if item.start > token:
                    segments.append((token, place, place, place, 0))
                origin = place + item.start - token
            segments.append((item.start, origin + moment, origin, origin, columns))
            token, place = item.end, origin + max(moment + 1, lines, columns)
        segments.append((token, place, place, place, 0))
        if len(segments) > MOST_SEGMENTS:
            message = (
                f"pictures and pairs of frames make {len(segments)} segments of the prompt; at most {MOST_SEGMENTS}"
            )
            raise InvalidRequestError(message, "multi_modal_data")
        return np.array(segments, dtype=np.int32)


def size_within(height: int, width: int, cell: int, pixels: tuple[int, int]) -> tuple[int, int]:
    """The nearest multiples of `cell` with as many pixels as there may be, at least and at most, in nearly the same
    shape."""
    low, high = pixels
    lines, columns = round(height / cell), round(width / cell)
    if lines * columns * cell**2 > high:
        shrink = math.sqrt(height * width / high)
        lines = max(1, math.floor(height / shrink / cell))
        columns = max(1, math.floor(width / shrink / cell))
    elif lines * columns * cell**2 < low:
        grow = math.sqrt(low / (height * width))
        lines, columns = math.ceil(height * grow / cell), math.ceil(width * grow / cell)
    return lines * cell, columns * cell


def most_cells(low: int, high: int, cell: int) -> int:
    """That `size_within` can give: of a picture that fits, of one that is shrunk to a single line of cells, and of one
    that is grown."""
    line = math.sqrt(_MOST_RATIO * high) / cell
    grown = (math.sqrt(_MOST_RATIO * low) / cell + 1) * (math.sqrt(low / _MOST_RATIO) / cell + 1)
    return int(max(high / cell**2, line, grown, 1))


def _between_marks(text: str) -> str:
    return f"<|vision_start|>{text}<|vision_end|>"


def _pixels(settings: Mapping[str, Any]) -> tuple[int, int]:
    told = settings.get("size")
    size = told if isinstance(told, Mapping) else {}
    low = settings.get("min_pixels") or size.get("shortest_edge")
    high = settings.get("max_pixels") or size.get("longest_edge")
    if not (isinstance(low, int) and isinstance(high, int) and 1 <= low <= high <= _MOST_PIXELS):
        message = f"size must name from 1 to {_MOST_PIXELS} pixels, at least and at most; found {low!r} and {high!r}"
        raise ModelFileError(f"preprocessor_config.json: {message}", "size")
    return low, high

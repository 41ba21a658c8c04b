"""vLLM's `media_io_kwargs`: how files are read, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cadence.core.checks import integer, number
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import IMAGE, VIDEO
from cadence.media.video import DEFAULT_SAMPLING, Sampling

FIELD = "media_io_kwargs"
_KNOWN = {IMAGE: (), VIDEO: ("num_frames", "fps")}


def sampling_of(options: object, before: Sampling = DEFAULT_SAMPLING, field: str = FIELD) -> Sampling:
    """{"video": {"num_frames": 16, "fps": 2}}; what it does not say stays as it was before."""
    if options is None:
        return before
    if not isinstance(options, Mapping):
        raise InvalidRequestError(f"{field} must be an object with options by kind", field)
    for kind, given in options.items():
        _check(kind, given, field)
    video: Mapping[str, Any] = options.get(VIDEO) or {}
    if (frames := video.get("num_frames")) is not None:
        where = f"{field}.video.num_frames"
        if integer(where, frames, low=-1) == 0:
            raise InvalidRequestError(f"{where} must be at least 1, or -1: all", where)
        before = replace(before, num_frames=int(frames))
    if (fps := video.get("fps")) is not None:
        before = replace(before, fps=max(number(f"{field}.video.fps", fps, low=-1), 0.0))
    return before


def _check(kind: object, given: object, field: str) -> None:
    if kind not in _KNOWN or not isinstance(given, Mapping):
        kinds = " and ".join(_KNOWN)
        raise InvalidRequestError(f"{field} must be an object with options of {kinds}", field)
    for name in given:
        if name not in _KNOWN[str(kind)]:
            where = f"{field}.{kind}.{str(name)[:40]}"
            known = ", ".join(_KNOWN[VIDEO])
            raise InvalidRequestError(f"{where} is not known; of videos {known} are, of pictures none", where)

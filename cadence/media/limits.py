"""How large pictures, videos and sounds may be, and where they may come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

from cadence.config.media_intake import MediaIntake
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE, VIDEO

_MIB = 2**20
MOST_REDIRECTS = 3
_NAMES = {IMAGE: "picture", VIDEO: "video", AUDIO: "sound"}


@dataclass(frozen=True, slots=True)
class MediaLimits:
    """Checked before a picture is decoded, by what its header says, and again by what came of it."""

    image_bytes: int = 32 * _MIB  # of a file, as it is stored
    video_bytes: int = 128 * _MIB
    audio_bytes: int = 64 * _MIB
    prompt_bytes: int = 256 * _MIB  # of all files of one prompt
    image_pixels: int = 64 * 2**20  # of one picture: 192 MiB as RGB
    side: int = 2**14  # most pixels along either edge
    aspect: int = 200  # of the longer edge to the shorter
    video_frames: int = 768  # that are kept
    video_seconds: float = 1800.0
    decode_seconds: float = 60.0  # that a video may take
    audio_seconds: float = 600.0  # of a sound
    prompt_pixels: int = 128 * 2**20  # of all pictures and frames of one prompt: 384 MiB
    per_prompt: Mapping[str, int] = field(default_factory=lambda: {IMAGE: 64, VIDEO: 4, AUDIO: 16})  # by kind

    def check_bytes(self, kind: str, num_bytes: int, where: str) -> None:
        most = self.bytes_of(kind)
        if num_bytes > most:
            raise InvalidRequestError(f"{where}: the {_NAMES[kind]}'s file must have at most {most} bytes", where)
        if not num_bytes:
            raise InvalidRequestError(f"{where}: the {_NAMES[kind]} is empty", where)

    def bytes_of(self, kind: str) -> int:
        return {IMAGE: self.image_bytes, VIDEO: self.video_bytes, AUDIO: self.audio_bytes}[kind]

    def check_size(self, width: int, height: int, where: str) -> None:
        """Of a picture or a frame."""
        if width < 1 or height < 1:
            raise InvalidRequestError(f"{where}: the picture has {width} x {height} pixels", where)
        if max(width, height) > self.side:
            self._refuse(width, height, f"at most {self.side} pixels along each edge", where)
        if width * height > self.image_pixels:
            self._refuse(width, height, f"at most {self.image_pixels} pixels", where)
        if max(width, height) > self.aspect * min(width, height):
            self._refuse(width, height, f"an edge at most {self.aspect} times as long as the other", where)

    def _refuse(self, width: int, height: int, limit: str, where: str) -> NoReturn:
        found = f"this one has {width} x {height} pixels"
        raise InvalidRequestError(f"{where}: a picture must have {limit}; {found}", where)

    def check_total(self, num_pixels: int, where: str) -> None:
        """Of all that a prompt has up to here."""
        if num_pixels > self.prompt_pixels:
            limit = f"at most {self.prompt_pixels} pixels together"
            raise InvalidRequestError(f"{where}: pictures and frames of one prompt must have {limit}", where)

    def check_count(self, kind: str, count: int, where: str) -> None:
        """where: of the first that is too many"""
        most = self.per_prompt.get(kind, 0)
        if count > most:
            name = _NAMES.get(kind, kind)
            raise InvalidRequestError(f"{where}: a prompt may have at most {most} {name}s", where)


@dataclass(frozen=True, slots=True)
class MediaAccess:
    """Where requests may have pictures taken from, beside what they bring along. As it is made: from nowhere."""

    domains: frozenset[str] = frozenset()  # names of hosts, lower case; "*" = all that are public
    local_root: Path | None = None  # files below it, links resolved
    max_redirects: int = MOST_REDIRECTS  # each is held to the same rules
    seconds: Mapping[str, float] = field(
        default_factory=lambda: {IMAGE: 5.0, VIDEO: 30.0, AUDIO: 10.0}
    )  # for one file, in all


DEFAULT_LIMITS = MediaLimits()


def limits_of(intake: MediaIntake) -> MediaLimits:
    """As the engine's options say."""
    return replace(
        DEFAULT_LIMITS,
        image_pixels=intake.max_pixels or DEFAULT_LIMITS.image_pixels,
        prompt_pixels=max(DEFAULT_LIMITS.prompt_pixels, intake.max_pixels),
        per_prompt={**DEFAULT_LIMITS.per_prompt, **intake.per_prompt},
    )


NO_ACCESS = MediaAccess()

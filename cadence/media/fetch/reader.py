"""From the parts of a request to the pictures and videos of its prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cadence.config.media_intake import MediaIntake
from cadence.core.errors import InvalidRequestError
from cadence.core.inputs.media import AUDIO, IMAGE
from cadence.media.as_media import as_picture, as_video
from cadence.media.decode import decode_picture
from cadence.media.fetch.read_url import UrlReader
from cadence.media.io_options import sampling_of
from cadence.media.limits import DEFAULT_LIMITS, MOST_REDIRECTS, MediaAccess, MediaLimits, limits_of
from cadence.media.parts import MediaPart
from cadence.media.picture import Picture
from cadence.media.sound import Sound, as_sound, decode_sound
from cadence.media.video import DEFAULT_SAMPLING, Sampling, Video, of_pictures
from cadence.media.video_decode import decode_video

Medium = Picture | Video | Sound
MediaData = dict[str, list[Medium | None]]  # `multi_modal_data`: by kind, in the order of the prompt; None = named


def open_reader(intake: MediaIntake) -> MediaReader:
    limits = limits_of(intake)
    redirects = MOST_REDIRECTS if intake.redirects else 0
    access = MediaAccess(intake.domains, intake.local_root, redirects, intake.seconds)
    return MediaReader(limits, UrlReader(limits, access), sampling_of(intake.io_kwargs))


@dataclass(frozen=True, slots=True)
class MediaReader:
    """Blocks: for threads, or for a program that waits."""

    limits: MediaLimits = DEFAULT_LIMITS
    urls: UrlReader = field(default_factory=UrlReader)
    sampling: Sampling = DEFAULT_SAMPLING  # of videos, where a request says nothing

    def read(self, parts: Sequence[MediaPart]) -> MediaData:
        self.check_counts(parts)
        return self.decode(parts, [self.fetch(part) for part in parts], self.sampling)

    def check_counts(self, parts: Sequence[MediaPart]) -> None:
        """Before anything is read."""
        counts: dict[str, int] = {}
        for part in parts:
            counts[part.kind] = counts.get(part.kind, 0) + 1
            self.limits.check_count(part.kind, counts[part.kind], part.where)

    def fetch(self, part: MediaPart) -> list[bytes]:
        """Files: one; of a video that comes as pictures, several; none of what was given as it is."""
        return [] if part.value is not None or part.was_sent_before else self.urls.read(part)

    def decode(self, parts: Sequence[MediaPart], files: Sequence[Sequence[bytes]], sampling: Sampling) -> MediaData:
        """files: of each part"""
        self._check_together(parts, files)
        made: MediaData = {}
        num_pixels = 0
        for part, some in zip(parts, files, strict=True):
            if part.was_sent_before:
                made.setdefault(part.kind, []).append(None)
                continue
            medium = self._medium(part, some, sampling, num_pixels)
            num_pixels += medium.num_pixels
            self.limits.check_total(num_pixels, part.where)
            made.setdefault(part.kind, []).append(medium)
        return made

    def _check_together(self, parts: Sequence[MediaPart], files: Sequence[Sequence[bytes]]) -> None:
        total = 0
        for part, some in zip(parts, files, strict=True):
            total += sum(map(len, some))
            if total > self.limits.prompt_bytes:
                limit = f"at most {self.limits.prompt_bytes} bytes together"
                raise InvalidRequestError(f"{part.where}: the files of one prompt must have {limit}", part.where)

    def _medium(self, part: MediaPart, files: Sequence[bytes], sampling: Sampling, num_pixels: int) -> Medium:
        where, limits = part.where, self.limits
        if part.kind == AUDIO:
            return decode_sound(files[0], where, limits) if part.value is None else as_sound(part.value, where)
        if part.value is not None and part.kind == IMAGE:
            return as_picture(part.value, where, limits, part.digest)
        if part.value is not None:
            return as_video(part.value, where, limits, part.digest, sampling)
        if part.kind == IMAGE:
            return decode_picture(files[0], where, limits, part.digest, num_pixels)
        if len(files) == 1:
            return decode_video(files[0], where, limits, part.digest, sampling, num_pixels)
        return of_pictures(self._frames(files, where, num_pixels), where, limits, part.digest)

    def _frames(self, files: Sequence[bytes], where: str, num_pixels: int) -> list[Picture]:
        frames: list[Picture] = []
        for file in files:
            frames.append(decode_picture(file, where, self.limits, num_pixels=num_pixels))
            num_pixels += frames[-1].num_pixels
        return frames

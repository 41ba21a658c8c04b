"""Segments, or their words, as subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cadence.audio.segments import SpeechSegment

SUBTITLES = ("srt", "vtt")


@dataclass(frozen=True, slots=True)
class Cue:
    """What is shown from one time to another, in seconds."""

    start: float
    end: float
    text: str


def cues_of(segments: Sequence[SpeechSegment]) -> list[Cue]:
    """Each word where words have times, else each segment."""
    cues: list[Cue] = []
    for segment in segments:
        words = [Cue(word.start, word.end, word.word) for word in segment.words]
        cues += words or [Cue(segment.start, segment.end, segment.text)]
    return cues


def subtitles(segments: Sequence[SpeechSegment], kind: str) -> str:
    """kind: srt or vtt"""
    cues = cues_of(segments)
    if kind == "vtt":
        parts = [f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{_line(one)}\n" for one in cues]
        return "\n".join(["WEBVTT\n", *parts])
    parts = [
        f"{number}\n{_time(one.start, ',')} --> {_time(one.end, ',')}\n{_line(one)}\n"
        for number, one in enumerate(cues, start=1)
    ]
    return "\n".join(parts)


def _line(cue: Cue) -> str:
    """An arrow in a text would be read as a time."""
    return cue.text.strip().replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    """00:01:02,345"""
    milliseconds = max(round(seconds * 1000), 0)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{rest:03d}"

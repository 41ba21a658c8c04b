"""Segments as subtitles: SubRip (srt) and WebVTT (vtt)."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.audio.segments import SpeechSegment

SUBTITLES = ("srt", "vtt")


def subtitles(segments: Sequence[SpeechSegment], kind: str) -> str:
    """kind: srt or vtt"""
    if kind == "vtt":
        parts = [f"{_time(one.start, '.')} --> {_time(one.end, '.')}\n{_line(one)}\n" for one in segments]
        return "\n".join(["WEBVTT\n", *parts])
    parts = [
        f"{number}\n{_time(one.start, ',')} --> {_time(one.end, ',')}\n{_line(one)}\n"
        for number, one in enumerate(segments, start=1)
    ]
    return "\n".join(parts)


def _line(segment: SpeechSegment) -> str:
    """An arrow in a text would be read as a time."""
    return segment.text.strip().replace("-->", "->")


def _time(seconds: float, point: str) -> str:
    """00:01:02,345"""
    milliseconds = max(round(seconds * 1000), 0)
    whole, rest = divmod(milliseconds, 1000)
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}{point}{rest:03d}"

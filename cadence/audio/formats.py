"""A transcript as text, subtitles and JSON: OpenAI's response formats. Pure functions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from cadence.audio.languages import language_name
from cadence.audio.segments import SpeechSegment, WordTime

FORMATS = ("json", "text", "srt", "vtt", "verbose_json")


@dataclass(frozen=True, slots=True)
class Transcript:
    text: str
    language: str  # code
    seconds: float  # of the recording
    task: str
    segments: tuple[SpeechSegment, ...]

    @property
    def words(self) -> list[WordTime]:
        return [word for segment in self.segments for word in segment.words]


def written(transcript: Transcript, form: str, granularities: Sequence[str] = ("segment",)) -> str:
    """The whole answer. `form`: of FORMATS; `granularities`: of verbose_json, "segment" and "word"."""
    if form == "text":
        return transcript.text + "\n"
    if form == "srt":
        return srt(transcript.segments)
    if form == "vtt":
        return vtt(transcript.segments)
    fields = verbose_fields(transcript, granularities) if form == "verbose_json" else {"text": transcript.text}
    return json.dumps(fields, ensure_ascii=False)


def srt(segments: Sequence[SpeechSegment]) -> str:
    """SubRip: numbered, times with a comma."""
    return "".join(
        f"{number}\n{clock(each.start, ',')} --> {clock(each.end, ',')}\n{_cue(each)}\n\n"
        for number, each in enumerate(segments, start=1)
    )


def vtt(segments: Sequence[SpeechSegment]) -> str:
    """WebVTT: times with a dot."""
    cues = (f"{clock(each.start, '.')} --> {clock(each.end, '.')}\n{_cue(each)}\n\n" for each in segments)
    return "WEBVTT\n\n" + "".join(cues)


def _cue(segment: SpeechSegment) -> str:
    """One line: an empty one would end the cue, and an arrow would look like its times."""
    return " ".join(segment.text.split()).replace("-->", "->")


def clock(seconds: float, mark: str) -> str:
    """hh:mm:ss and thousandths after `mark`; rounded as a whole, so that 59.9999 s is a minute."""
    thousandths = max(round(seconds * 1000), 0)
    minutes, rest = divmod(thousandths, 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{rest // 1000:02d}{mark}{rest % 1000:03d}"


def verbose_fields(transcript: Transcript, granularities: Sequence[str] = ("segment",)) -> dict[str, Any]:
    """What verbose_json says; words and segments where they were asked for."""
    fields: dict[str, Any] = {
        "task": transcript.task,
        "language": language_name(transcript.language),
        "duration": round(transcript.seconds, 3),
        "text": transcript.text,
    }
    if "segment" in granularities:
        fields["segments"] = [segment_fields(place, each) for place, each in enumerate(transcript.segments)]
    if "word" in granularities:
        fields["words"] = [word_fields(word) for word in transcript.words]
    return fields


def segment_fields(place: int, segment: SpeechSegment) -> dict[str, Any]:
    return {
        "id": place,
        "seek": round(segment.window_start * 100),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.average_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


def word_fields(word: WordTime) -> dict[str, Any]:
    return {"word": word.word.strip(), "start": round(word.start, 3), "end": round(word.end, 3)}

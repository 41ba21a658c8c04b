"""What comes back while a recording is read: text as it is written, segments, and all of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from cadence.audio.segments import SpeechSegment


@dataclass(frozen=True, slots=True)
class PartialText:
    """What is written of the current window so far. It may still change: later events say the same part again."""

    text: str


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Text that follows what was said before, and stays."""

    text: str
    segment: SpeechSegment  # whose text it is


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A piece of the transcript and its place in the recording."""

    number: int
    segment: SpeechSegment


@dataclass(frozen=True, slots=True)
class TranscriptProgress:
    """How far the recording was read, in seconds."""

    done: float
    total: float


@dataclass(frozen=True, slots=True)
class Transcript:
    """The last event."""

    text: str
    language: str  # its code
    task: str  # "transcribe" or "translate"
    duration: float  # of the recording, seconds
    segments: list[SpeechSegment] = field(default_factory=list)


TranscriptEvent = PartialText | SpokenText | SpokenSegment | TranscriptProgress | Transcript

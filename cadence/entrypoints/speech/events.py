"""What comes back while a recording is read: text as it is written, segments, and all of it at the end."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpokenText:
    """Text that follows what was said before."""

    text: str


@dataclass(frozen=True, slots=True)
class SpokenSegment:
    """A piece of the transcript and its place in the recording."""

    id: int
    start: float  # seconds
    end: float  # seconds
    text: str
    token_ids: tuple[int, ...] = ()
    seek: int = 0  # where its window began, in frames of 10 ms
    temperature: float = 0.0
    avg_logprob: float = 0.0
    compression_ratio: float = 0.0
    no_speech_prob: float = 0.0


@dataclass(frozen=True, slots=True)
class Transcript:
    """The last event."""

    text: str
    language: str  # its code
    task: str  # "transcribe" or "translate"
    duration: float  # of the recording, seconds
    segments: list[SpokenSegment] = field(default_factory=list)
    num_tokens: int = 0  # that the model wrote


TranscriptEvent = SpokenText | SpokenSegment | Transcript

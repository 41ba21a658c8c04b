"""A transcriber whose words are known, and a recording for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from cadence.audio.segments import SpeechSegment, WordTime
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.speech.events import (
    PartialText,
    SpokenSegment,
    SpokenText,
    Transcript,
    TranscriptEvent,
    TranscriptProgress,
)
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams
from tests.helpers.recordings import tone, wav_file

WORDS = ((0.0, 1.5, " It was the best"), (1.5, 61.25, " of times."))
TEXT = "It was the best of times."


def sound(seconds: float = 1.25, rate: int = 8_000) -> bytes:
    """A tone, as a wav file of 16 bits."""
    return wav_file(tone(seconds, rate), rate)


def timed(text: str, start: float, end: float) -> tuple[WordTime, ...]:
    """Its words, as long as one another."""
    words = text.split()
    each = (end - start) / len(words)
    return tuple(WordTime(f" {word}", start + at * each, start + (at + 1) * each) for at, word in enumerate(words))


class TellsTimes:
    """Says the same of every recording, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, TranscriptionParams, SpeechRequest]] = []

    def check(self, params: TranscriptionParams) -> None:
        if params.language == "xx":
            raise InvalidRequestError("language is not one of the model's: 'xx'", "language")

    async def transcribe(
        self, samples_np: Any, params: TranscriptionParams, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        seconds = len(samples_np) / 16_000
        self.asked.append((seconds, params, request))
        segments = []
        yield TranscriptProgress(0.0, seconds)
        for number, (start, end, text) in enumerate(WORDS):
            if params.partial_text:
                yield PartialText(text[:4])
            words = timed(text, start, end) if params.word_times else ()
            said = tuple((ord(character), -0.25) for character in text.strip()[:2])
            segment = SpeechSegment(start=start, end=end, text=text, tokens=(number,), words=words, logprobs=said)
            segments.append(segment)
            yield SpokenText(text.lstrip() if number == 0 else text, segment)
            yield SpokenSegment(number, segment)
        yield TranscriptProgress(seconds, seconds)
        yield Transcript(text=TEXT, language="en", task=params.task, duration=seconds, segments=segments)

"""Transcripts as OpenAI shapes them; the events of a stream also have what vLLM's chunks have."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, Protocol

from cadence.audio.segments import SpeechSegment, WordTime
from cadence.entrypoints.server.http.stream import StartedStream, event
from cadence.entrypoints.server.protocol.logprobs import TokenNames, token_logprob
from cadence.entrypoints.speech.events import PartialText, SpokenSegment, SpokenText, Transcript, TranscriptEvent

FRAMES_A_SECOND = 100  # of features: what OpenAI counts places in


class ShownLogprobs(Protocol):
    def of(self, segments: Sequence[SpeechSegment]) -> dict[str, Any]:
        """-> fields of an answer, or of an event"""
        ...


class NoLogprobs:
    def of(self, segments: Sequence[SpeechSegment]) -> dict[str, Any]:
        return {}


class TextLogprobs:
    """Of the tokens of text; those of times are left out."""

    def __init__(self, names: TokenNames) -> None:
        self._names = names

    def of(self, segments: Sequence[SpeechSegment]) -> dict[str, Any]:
        return {"logprobs": [token_logprob(self._names, *pair) for one in segments for pair in one.logprobs]}


def usage_of(transcript: Transcript) -> dict[str, Any]:
    """Recordings are counted in seconds, begun ones as whole."""
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def plain_answer(transcript: Transcript, logprobs: ShownLogprobs) -> dict[str, Any]:
    return {"text": transcript.text, **logprobs.of(transcript.segments), "usage": usage_of(transcript)}


def verbose_answer(transcript: Transcript, granularities: Collection[str]) -> dict[str, Any]:
    """granularities: what has times, of `segment` and `word`"""
    timed: dict[str, Any] = {}
    if "segment" in granularities:
        timed["segments"] = [segment_of(number, one) for number, one in enumerate(transcript.segments)]
    if "word" in granularities:
        timed["words"] = [word_of(word) for one in transcript.segments for word in one.words]
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        "text": transcript.text,
        **timed,
        "usage": usage_of(transcript),
    }


def word_of(word: WordTime) -> dict[str, Any]:
    return {"word": word.word.strip(), "start": round(word.start, 3), "end": round(word.end, 3)}


def segment_of(number: int, segment: SpeechSegment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": int(segment.start * FRAMES_A_SECOND),
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": segment.average_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }


@dataclass(frozen=True, slots=True)
class StreamParts:
    """What a stream tells beside text."""

    segments: bool = False
    words: bool = False  # of segments
    logprobs: ShownLogprobs = field(default_factory=NoLogprobs)


class TranscriptStream:
    """Events of OpenAI's types: text as it comes, segments where they were asked for, all of it at the end."""

    def __init__(self, name: str, model: str, kind: str, params: StreamParts) -> None:
        """kind: transcription or translation"""
        self._parts = params
        self._base = {"id": name, "object": f"{kind}.chunk", "created": int(time.time()), "model": model}

    async def write(self, events: StartedStream[TranscriptEvent]) -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            async for item in events:
                if isinstance(item, SpokenText):
                    yield event(self._delta(item))
                elif isinstance(item, Transcript):
                    yield event(self._done(item))
                elif isinstance(item, SpokenSegment) and self._parts.segments:
                    yield event(_segment_event(item.number, item.segment, self._parts.words))
                elif isinstance(item, PartialText):
                    yield event({"type": "transcript.text.partial", "text": item.text})

    def _delta(self, spoken: SpokenText) -> dict[str, Any]:
        logprobs = self._parts.logprobs.of([spoken.segment])
        return {"type": "transcript.text.delta", "delta": spoken.text, **logprobs, **self._chunk(spoken.text)}

    def _done(self, transcript: Transcript) -> dict[str, Any]:
        usage = usage_of(transcript)
        extra = {"language": transcript.language, "duration": round(transcript.duration, 3)}
        done = {"type": "transcript.text.done", "text": transcript.text, "usage": usage, **extra}
        return done | self._parts.logprobs.of(transcript.segments) | self._chunk("", "stop")

    def _chunk(self, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return {**self._base, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


def _segment_event(number: int, segment: SpeechSegment, words: bool) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "speaker": "",
        **({"words": [word_of(word) for word in segment.words]} if words else {}),
    }

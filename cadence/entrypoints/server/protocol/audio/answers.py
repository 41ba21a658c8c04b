"""Transcripts as OpenAI shapes them; the events of a stream also have what vLLM's chunks have."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from cadence.audio.segments import SpeechSegment
from cadence.entrypoints.server.http.stream import StartedStream, event
from cadence.entrypoints.speech.events import PartialText, SpokenSegment, SpokenText, Transcript, TranscriptEvent

FRAMES_A_SECOND = 100  # of features: what OpenAI counts places in


def usage_of(transcript: Transcript) -> dict[str, Any]:
    """Recordings are counted in seconds, begun ones as whole."""
    return {"type": "duration", "seconds": math.ceil(transcript.duration)}


def plain_answer(transcript: Transcript) -> dict[str, Any]:
    return {"text": transcript.text, "usage": usage_of(transcript)}


def verbose_answer(transcript: Transcript) -> dict[str, Any]:
    return {
        "task": transcript.task,
        "language": transcript.language,
        "duration": round(transcript.duration, 3),
        "text": transcript.text,
        "segments": [segment_of(number, one) for number, one in enumerate(transcript.segments)],
        "usage": usage_of(transcript),
    }


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


class TranscriptStream:
    """Events of OpenAI's types: text as it comes, segments where they were asked for, all of it at the end."""

    def __init__(self, name: str, model: str, kind: str, with_segments: bool) -> None:
        """kind: transcription or translation"""
        self._with_segments = with_segments
        self._base = {"id": name, "object": f"{kind}.chunk", "created": int(time.time()), "model": model}

    async def write(self, events: StartedStream[TranscriptEvent]) -> AsyncGenerator[bytes, None]:
        async with aclosing(events):
            async for item in events:
                if isinstance(item, SpokenText):
                    yield event({"type": "transcript.text.delta", "delta": item.text, **self._chunk(item.text)})
                elif isinstance(item, Transcript):
                    yield event(self._done(item))
                elif isinstance(item, SpokenSegment) and self._with_segments:
                    yield event(_segment_event(item.number, item.segment))
                elif isinstance(item, PartialText):
                    yield event({"type": "transcript.text.partial", "text": item.text})

    def _done(self, transcript: Transcript) -> dict[str, Any]:
        usage = usage_of(transcript)
        extra = {"language": transcript.language, "duration": round(transcript.duration, 3)}
        done = {"type": "transcript.text.done", "text": transcript.text, "usage": usage, **extra}
        return done | self._chunk("", "stop")

    def _chunk(self, text: str, finish_reason: str | None = None) -> dict[str, Any]:
        return {**self._base, "choices": [{"index": 0, "delta": {"content": text}, "finish_reason": finish_reason}]}


def _segment_event(number: int, segment: SpeechSegment) -> dict[str, Any]:
    return {
        "type": "transcript.text.segment",
        "id": f"seg_{number}",
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "text": segment.text,
        "speaker": "",
    }

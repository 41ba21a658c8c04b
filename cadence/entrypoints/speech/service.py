"""What a server has for speech: its model's way to transcribe, or a sentence that says it has none."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Protocol

import numpy as np
import numpy.typing as npt

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.speech.events import TranscriptEvent
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams

FloatArray = npt.NDArray[np.float32]
ReadFile = Callable[[], bytes]


class Transcriber(Protocol):
    def check(self, options: TranscriptionParams) -> None:
        """Raises InvalidRequestError where the model cannot do what is asked."""

    def transcribe(
        self, samples_np: FloatArray, options: TranscriptionParams, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Samples [n] at 16 kHz -> text as it comes, segments, and a `Transcript` at the end."""


class NullTranscriber:
    """For models that do not hear."""

    def check(self, options: TranscriptionParams) -> None:
        raise InvalidRequestError("this model does not transcribe speech: it takes text alone", "model")

    def transcribe(
        self, samples_np: FloatArray, options: TranscriptionParams, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        raise AssertionError("a request is checked before it is carried out")


class Speech:
    def __init__(self, transcriber: Transcriber, recordings: Recordings) -> None:
        self._transcriber = transcriber
        self._recordings = recordings

    def check(self, options: TranscriptionParams) -> None:
        self._transcriber.check(options)

    async def events(
        self, read: ReadFile, options: TranscriptionParams, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        """Of a file. What is wrong with it raises before the first event."""
        async with (
            self._recordings.opened(read) as samples_np,
            aclosing(self._transcriber.transcribe(samples_np, options, request)) as events,
        ):
            async for item in events:
                yield item

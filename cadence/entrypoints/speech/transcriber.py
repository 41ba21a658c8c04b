"""Drives an engine through a recording, window by window: `Transcription` says what to ask, and reads the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from cadence.audio.languages import language_code
from cadence.audio.prompts import start_tokens
from cadence.audio.queries import QueryKind, SpeechAnswer, SpeechModel, SpeechOptions, SpeechQuery
from cadence.audio.segments import SpeechSegment
from cadence.audio.transcription import Transcription
from cadence.core.inputs.encoder_input import EncoderInput
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.entrypoints.speech.events import (
    PartialText,
    SpokenSegment,
    SpokenText,
    Transcript,
    TranscriptEvent,
    TranscriptProgress,
)
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptionParams

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

FloatArray = npt.NDArray[np.float32]
CheckEnd = Callable[[CompletionOutput], None]

ANY_LANGUAGE = "en"  # stands for the one that is found out, where parameters are checked


class WhisperTranscriber:
    """Shared by all recordings; each is one `Transcription`, whose queries are requests of their own."""

    def __init__(self, llm: AsyncLLM, model: SpeechModel, recordings: Recordings, check_end: CheckEnd) -> None:
        """check_end: raises where the engine ended a request badly"""
        self._llm = llm
        self._model = model
        self._recordings = recordings
        self._check_end = check_end

    def check(self, params: TranscriptionParams) -> None:
        start_tokens(self._model.vocabulary, params.language or ANY_LANGUAGE, params.task, timestamps=True)
        # Raises where one is out of range:
        SamplingParams(temperature=params.temperature, seed=params.seed, **params.sampling)

    async def transcribe(
        self, samples_np: FloatArray, params: TranscriptionParams, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        options = await self._options(params)
        work = await self._recordings.in_thread(lambda: Transcription(samples_np, self._model, options))
        yield TranscriptProgress(0.0, work.seconds)
        number = 0
        while (query := work.next()) is not None:
            answer = SpeechAnswer((), (), {})
            answering = self._aligned if query.kind is QueryKind.WORDS else self._answers
            async with aclosing(answering(query, params, request, number)) as answers:
                async for answer, is_whole in answers:
                    if params.partial_text and not is_whole and query.kind is QueryKind.TEXT:
                        yield PartialText(self._text(answer))
            number += 1
            whole = answer
            segments = await self._recordings.in_thread(lambda: work.answer(whole))  # noqa: B023 (awaited at once)
            for event in _segment_events(work.segments, len(segments)):
                yield event
            yield TranscriptProgress(work.seconds_done, work.seconds)
        yield Transcript(
            text=work.text,
            language=work.language,
            task=params.task,
            duration=work.seconds,
            segments=work.segments,
        )

    async def _options(self, params: TranscriptionParams) -> SpeechOptions:
        prompt = (await self._llm.texts.encode(f" {params.prompt.strip()}")).ids if params.prompt.strip() else []
        plain = SpeechOptions(
            language=language_code(params.language) if params.language else "",
            task=params.task,
            prompt=tuple(token for token in prompt if token < self._model.vocabulary.end_of_text),
            max_tokens=params.max_tokens,
            seed=params.seed,
            word_times=params.word_times,
            drop_silence=params.drop_silence,
            activity=params.activity,
        )
        return replace(plain, temperatures=(params.temperature,)) if params.temperature else plain

    async def _answers(
        self, query: SpeechQuery, params: TranscriptionParams, request: SpeechRequest, number: int
    ) -> AsyncGenerator[tuple[SpeechAnswer, bool], None]:
        """What the engine has said so far, and whether that is all."""
        sampling = replace(query.sampling, output_kind=RequestOutputKind.DELTA)
        if query.kind is QueryKind.TEXT:
            sampling = replace(sampling, **params.sampling)
        given: dict[str, Any] = {"priority": request.priority, "lora_request": request.lora_request}
        outputs = self._llm.generate(self._prompt(query, request), sampling, f"{request.name}-{number}", **given)
        said: CompletionOutput | None = None
        async with aclosing(cast(AsyncGenerator[RequestOutput, None], outputs)) as parts:
            async for output in parts:
                said = _joined(said, output.outputs[0])
                if output.finished:
                    self._check_end(said)
                yield SpeechAnswer.of(said), output.finished

    async def _aligned(
        self, query: SpeechQuery, params: TranscriptionParams, request: SpeechRequest, number: int
    ) -> AsyncGenerator[tuple[SpeechAnswer, bool], None]:
        """The same, where no token is asked for."""
        given: dict[str, Any] = {"priority": request.priority, "lora_request": request.lora_request}
        name = f"{request.name}-{number}"
        matrix_np = await self._llm.align(self._prompt(query, request), query.alignment, name, **given)
        yield SpeechAnswer((), (), {}, matrix_np), True

    def _prompt(self, query: SpeechQuery, request: SpeechRequest) -> Any:
        content = EncoderInput.of_features(query.features_np, self._llm.config.model.encoder.max_len)
        return {"encoder_prompt": content, "decoder_prompt": query.prompt_token_ids, **request.prompt_fields}

    def _text(self, answer: SpeechAnswer) -> str:
        return self._model.decode([t for t in answer.token_ids if t < self._model.vocabulary.end_of_text])


def _segment_events(segments: list[SpeechSegment], count: int) -> list[TranscriptEvent]:
    """The last `count` of the segments, as events."""
    events: list[TranscriptEvent] = []
    for number in range(len(segments) - count, len(segments)):
        segment = segments[number]
        events.append(SpokenText(segment.text if number else segment.text.lstrip(), segment))
        events.append(SpokenSegment(number, segment))
    return events


def _joined(said: CompletionOutput | None, new: CompletionOutput) -> CompletionOutput:
    if said is None:
        return new
    tokens = [*said.token_ids, *new.token_ids]
    logprobs: Any = [*(said.logprobs or ()), *(new.logprobs or ())]
    return replace(new, token_ids=tokens, logprobs=logprobs)

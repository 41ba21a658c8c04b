"""Drives an engine through a recording, window by window: `Transcription` says what to ask, and reads the answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from cadence.audio.asks import AskKind, SpeechAnswer, SpeechAsk, SpeechModel, SpeechOptions
from cadence.audio.languages import language_code
from cadence.audio.prompts import start_tokens
from cadence.audio.segments import SpeechSegment
from cadence.audio.transcription import Transcription
from cadence.core.alignment import AlignmentSpec
from cadence.core.encoder_input import EncoderInput
from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import RequestOutputKind, SamplingParams
from cadence.entrypoints.speech.events import (
    Heard,
    PartialText,
    SpokenSegment,
    SpokenText,
    Transcript,
    TranscriptEvent,
)
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.requests import SpeechRequest, TranscriptWish

if TYPE_CHECKING:
    from cadence.entrypoints.async_llm import AsyncLLM

FloatArray = npt.NDArray[np.float32]
CheckEnd = Callable[[CompletionOutput], None]

ANY_LANGUAGE = "en"  # stands for the one that is found out, where a wish is checked


class WhisperTranscriber:
    """Shared by all recordings; each is one `Transcription`, whose asks are requests of their own."""

    def __init__(self, llm: AsyncLLM, model: SpeechModel, recordings: Recordings, check_end: CheckEnd) -> None:
        """check_end: raises where the engine ended a request badly"""
        self._llm = llm
        self._model = model
        self._recordings = recordings
        self._check_end = check_end

    def check(self, wish: TranscriptWish) -> None:
        stages = self._llm.config.parallel.pipeline_parallel_size
        if wish.word_times and stages > 1:
            raise InvalidRequestError(f"{AlignmentSpec.lacking}; it is {stages}", "timestamp_granularities")
        start_tokens(self._model.vocabulary, wish.language or ANY_LANGUAGE, wish.task, timestamps=True)
        SamplingParams(temperature=wish.temperature, seed=wish.seed, **wish.sampling)  # raises, where out of range

    async def transcribe(
        self, samples_np: FloatArray, wish: TranscriptWish, request: SpeechRequest
    ) -> AsyncGenerator[TranscriptEvent, None]:
        options = await self._options(wish)
        work = await self._recordings.beside(lambda: Transcription(samples_np, self._model, options))
        yield Heard(0.0, work.seconds)
        number = 0
        while (ask := work.next()) is not None:
            answer = SpeechAnswer((), (), {})
            answering = self._aligned if ask.kind is AskKind.WORDS else self._answers
            async with aclosing(answering(ask, wish, request, number)) as answers:
                async for answer, is_whole in answers:
                    if wish.partial_text and not is_whole and ask.kind is AskKind.TEXT:
                        yield PartialText(self._text(answer))
            number += 1
            whole = answer
            segments = await self._recordings.beside(lambda: work.answer(whole))  # noqa: B023 (awaited at once)
            for event in _told(work.segments, len(segments)):
                yield event
            yield Heard(work.seconds_done, work.seconds)
        yield Transcript(
            text=work.text,
            language=work.language,
            task=wish.task,
            duration=work.seconds,
            segments=work.segments,
        )

    async def _options(self, wish: TranscriptWish) -> SpeechOptions:
        prompt = (await self._llm.texts.encode(f" {wish.prompt.strip()}")).ids if wish.prompt.strip() else []
        plain = SpeechOptions(
            language=language_code(wish.language) if wish.language else "",
            task=wish.task,
            prompt=tuple(token for token in prompt if token < self._model.vocabulary.end_of_text),
            max_tokens=wish.max_tokens,
            seed=wish.seed,
            word_times=wish.word_times,
            drop_silence=wish.drop_silence,
            activity=wish.activity,
        )
        return replace(plain, temperatures=(wish.temperature,)) if wish.temperature else plain

    async def _answers(
        self, ask: SpeechAsk, wish: TranscriptWish, request: SpeechRequest, number: int
    ) -> AsyncGenerator[tuple[SpeechAnswer, bool], None]:
        """What the engine has said so far, and whether that is all."""
        sampling = replace(ask.sampling, output_kind=RequestOutputKind.DELTA)
        if ask.kind is AskKind.TEXT:
            sampling = replace(sampling, **wish.sampling)
        given: dict[str, Any] = {"priority": request.priority, "lora_request": request.lora_request}
        outputs = self._llm.generate(self._prompt(ask, request), sampling, f"{request.name}-{number}", **given)
        said: CompletionOutput | None = None
        async with aclosing(cast(AsyncGenerator[RequestOutput, None], outputs)) as parts:
            async for output in parts:
                said = _joined(said, output.outputs[0])
                if output.finished:
                    self._check_end(said)
                yield SpeechAnswer.of(said), output.finished

    async def _aligned(
        self, ask: SpeechAsk, wish: TranscriptWish, request: SpeechRequest, number: int
    ) -> AsyncGenerator[tuple[SpeechAnswer, bool], None]:
        """The same, where no token is asked for."""
        given: dict[str, Any] = {"priority": request.priority, "lora_request": request.lora_request}
        name = f"{request.name}-{number}"
        matrix_np = await self._llm.align(self._prompt(ask, request), ask.alignment, name, **given)
        yield SpeechAnswer((), (), {}, matrix_np), True

    def _prompt(self, ask: SpeechAsk, request: SpeechRequest) -> Any:
        content = EncoderInput.of_features(ask.features_np, self._llm.config.model.encoder.max_len)
        return {"encoder_prompt": content, "decoder_prompt": ask.prompt_token_ids, **request.prompt_fields}

    def _text(self, answer: SpeechAnswer) -> str:
        return self._model.decode([t for t in answer.token_ids if t < self._model.vocabulary.end_of_text])


def _told(segments: list[SpeechSegment], count: int) -> list[TranscriptEvent]:
    """The last `count` of the segments, as events."""
    told: list[TranscriptEvent] = []
    for number in range(len(segments) - count, len(segments)):
        segment = segments[number]
        told.append(SpokenText(segment.text if number else segment.text.lstrip(), segment))
        told.append(SpokenSegment(number, segment))
    return told


def _joined(said: CompletionOutput | None, new: CompletionOutput) -> CompletionOutput:
    if said is None:
        return new
    tokens = [*said.token_ids, *new.token_ids]
    logprobs: Any = [*(said.logprobs or ()), *(new.logprobs or ())]
    return replace(new, token_ids=tokens, logprobs=logprobs)

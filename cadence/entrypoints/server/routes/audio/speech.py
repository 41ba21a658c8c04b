"""/v1/audio/transcriptions and /v1/audio/translations: recordings to text."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from cadence.audio.activity import DEFAULT_ACTIVITY
from cadence.entrypoints.server.http.request_ids import request_id
from cadence.entrypoints.server.http.stream import EventStream, admitted, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.http.uploads import UPLOAD, Upload
from cadence.entrypoints.server.protocol.audio.answers import (
    NoLogprobs,
    ShownLogprobs,
    StreamParts,
    TextLogprobs,
    TranscriptStream,
    plain_answer,
    verbose_answer,
)
from cadence.entrypoints.server.protocol.audio.bodies import SpeechForm, form_schema, parse_form
from cadence.entrypoints.server.protocol.logprobs import TokenNames
from cadence.entrypoints.server.protocol.sampling import priority_of
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.entrypoints.speech.events import Transcript, TranscriptEvent
from cadence.entrypoints.speech.requests import TRANSCRIBE, TRANSLATE, SpeechRequest, TranscriptionParams
from cadence.entrypoints.speech.subtitles import subtitles

router = APIRouter(tags=["audio"])


@router.post("/v1/audio/transcriptions", openapi_extra=form_schema())
async def create_transcription(request: Request, state: State) -> Response:
    return await _answer(_checked(TRANSCRIBE, request, state), request, state)


@router.post("/v1/audio/translations", openapi_extra=form_schema())
async def create_translation(request: Request, state: State) -> Response:
    """Speech of any language, as English text."""
    return await _answer(_checked(TRANSLATE, request, state), request, state)


@dataclass(frozen=True, slots=True)
class SpeechWork:
    """A request, checked."""

    form: SpeechForm
    upload: Upload
    options: TranscriptionParams
    engine: SpeechRequest
    name: str
    model: str  # that signs the answer


def _checked(task: str, request: Request, state: ServerState) -> SpeechWork:
    upload: Upload = request.scope[UPLOAD]
    form = parse_form(upload, state.ignored.of(request))
    model = state.check_model(form.model)
    activity = form.activity()
    options = TranscriptionParams(
        task=task,
        language=form.language or "",
        prompt=form.prompt or "",
        temperature=form.temperature or 0.0,
        max_tokens=form.max_completion_tokens or 0,
        seed=form.seed or 0,
        sampling=form.sampling(),
        partial_text=form.stream and bool(form.stream_partial_text),
        word_times="word" in form.granularities,
        drop_silence=activity is not None,
        activity=activity or DEFAULT_ACTIVITY,
    )
    state.speech.check(options)
    name = request_id(request, "trsc-" if task == TRANSCRIBE else "trsl-")
    scope = request.scope
    engine = SpeechRequest(
        name=state.tenants.engine_id(scope, name),
        priority=priority_of(form, request.headers),
        prompt_fields={
            "cache_salt": state.tenants.cache_salt(scope, None),
            "tenant": tenant_of(scope),
            "data_parallel_rank": state.data_parallel_rank(request),
        },
        **state.adapters.given(form.model),
    )
    return SpeechWork(form=form, upload=upload, options=options, engine=engine, name=name, model=model)


async def _answer(work: SpeechWork, request: Request, state: ServerState) -> Response:
    entry = state.admission.enter(request, 1)
    events = admitted(entry, state.speech.events(work.upload.read, work.options, work.engine), _no_check)
    if work.form.stream:
        kind = "transcription" if work.options.task == TRANSCRIBE else "translation"
        params = StreamParts(
            segments=work.form.response_format == "verbose_json",
            words=work.options.word_times,
            logprobs=_logprobs(work.form, state),
        )
        stream = TranscriptStream(work.name, work.model, kind, params)
        return EventStream(stream.write(await started_stream(events)))
    return _shaped(await _transcript(events), work.form, state)


def _logprobs(form: SpeechForm, state: ServerState) -> ShownLogprobs:
    return TextLogprobs(TokenNames(state.llm.tokenizer, as_ids=False)) if form.include else NoLogprobs()


async def _transcript(events: AsyncGenerator[TranscriptEvent, None]) -> Transcript:
    async with aclosing(events) as items:
        async for item in items:
            if isinstance(item, Transcript):
                return item
    raise AssertionError("a transcript is the last of its events")


def _shaped(transcript: Transcript, form: SpeechForm, state: ServerState) -> Response:
    if form.response_format == "json":
        return json_response(plain_answer(transcript, _logprobs(form, state)))
    if form.response_format == "verbose_json":
        return json_response(verbose_answer(transcript, form.granularities))
    if form.response_format == "text":
        return PlainTextResponse(transcript.text + "\n")
    return PlainTextResponse(subtitles(transcript.segments, form.response_format))


def _no_check(item: TranscriptEvent) -> None:
    """Failures are raised by what makes the events."""

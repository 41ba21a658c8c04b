"""/v1/messages and /v1/messages/count_tokens, as Anthropic's clients know them."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.chat.events import ChatEvent, ChatJob
from cadence.entrypoints.server.chat.failures import check_event
from cadence.entrypoints.server.http.bodies import free_when_read
from cadence.entrypoints.server.http.errors import reply_for
from cadence.entrypoints.server.http.request_ids import token
from cadence.entrypoints.server.http.stream import (
    EventStream,
    Pings,
    StartedStream,
    admitted,
    json_response,
    started_stream,
)
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.messages import CountTokensBody, MessagesBody
from cadence.entrypoints.server.protocol.messages_answer import PATH, MessageAnswer, write, write_error
from cadence.entrypoints.server.protocol.sampling import EndpointFields, priority_of, sampling_params
from cadence.entrypoints.server.routes.state import ServerState, State

logger = logging.getLogger("cadence.server")
router = APIRouter(tags=["messages"])

PING_S = 15.0
SENT_NAMES = {"stop": "stop_sequences", "prompt": "messages"}  # of what the engine knows -> what clients know


@router.post(PATH, openapi_extra=body_schema(MessagesBody))
async def create_message(request: Request, state: State) -> Response:
    job, answer, size = await state.bodies.read(request, lambda raw: _prepare(raw, request, state), held=True)
    free_when_read(request, job.media)
    entry = state.admission.enter(request, size)
    events = admitted(entry, state.chat.run(job), check_event)
    if job.stream:
        pings = Pings(write([{"type": "ping"}]), PING_S)
        return EventStream(_chunks(answer, await started_stream(events)), last=b"", pings=pings)
    async with aclosing(events):
        async for event in events:
            answer.read(event)
    return json_response(answer.whole())


@router.post(f"{PATH}/count_tokens", openapi_extra=body_schema(CountTokensBody))
async def count_tokens(request: Request, state: State) -> Response:
    job = await state.bodies.read(request, lambda raw: _prepare_count(raw, request, state), held=True)
    return json_response({"input_tokens": await state.chat.count_all(job)})


def _prepare(raw: bytes, request: Request, state: ServerState) -> tuple[ChatJob, MessageAnswer, int]:
    """The job, what answers it, and its estimated tokens."""
    body = parse_body(MessagesBody, raw, state.ignored.of(request))
    body.check()
    model = state.check_writer(body.model)
    message_id = f"msg_{token(request.scope)[:24]}"
    generation = body.generation(state.chat.separates_reasoning)
    fields = EndpointFields(body.max_tokens, None, SENT_NAMES, structured=body.structured())
    params = sampling_params(generation, state.default_sampling, fields)
    job = replace(
        _job(body, state.tenants.engine_id(request.scope, message_id), params, state),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        tenant=tenant_of(request.scope),
        data_parallel_rank=state.data_parallel_rank(request),
        priority=priority_of(generation, request.headers),
        max_output=body.max_tokens,
        adapter=state.adapters.of(body.model),
        id_seed=token(request.scope),
    )
    return job, MessageAnswer(message_id, model, body.parallel_calls()), job.estimated_tokens()


def _prepare_count(raw: bytes, request: Request, state: ServerState) -> ChatJob:
    body = parse_body(CountTokensBody, raw, state.ignored.of(request))
    body.check()
    state.check_model(body.model)
    return _job(body, "", SamplingParams(), state)


def _job(body: CountTokensBody, engine_id: str, params: SamplingParams, state: ServerState) -> ChatJob:
    continues = body.prefilled()
    messages, media = state.chat.split_media(body.chat_messages())
    return ChatJob(
        request_id=engine_id,
        messages=messages,
        media=media,
        params=params,
        stream=bool(getattr(body, "stream", False)),
        tools=body.chat_tools,
        tool_choice=body.choice(),
        parallel_calls=body.parallel_calls(),
        add_generation_prompt=not continues,
        continue_final_message=continues,
        template_kwargs=body.template_kwargs(),
        sent_names=SENT_NAMES,
    )


async def _chunks(answer: MessageAnswer, events: StartedStream[ChatEvent]) -> AsyncGenerator[bytes, None]:
    try:
        async with aclosing(events):
            async for event in events:
                if found := answer.read(event):
                    yield write(found)
        yield write(answer.finish())
    except Exception as error:
        reply = reply_for(error)
        if reply.is_bug:
            logger.error("a message broke", exc_info=error)
        yield write_error(reply)

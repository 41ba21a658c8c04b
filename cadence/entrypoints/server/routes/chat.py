"""/v1/chat/completions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.engine import ChatRun
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.chat.failures import check_event
from cadence.entrypoints.server.chat.truncation import Truncation
from cadence.entrypoints.server.http.bodies import free_when_read
from cadence.entrypoints.server.http.direct import DirectStream
from cadence.entrypoints.server.http.request_ids import created, request_id, token
from cadence.entrypoints.server.http.stream import EventStream, admitted, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.beam import beam_params, shape_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.chat import ChatCompletionBody
from cadence.entrypoints.server.protocol.chat_answer import ChatAnswer, ChatChunks, ChatView
from cadence.entrypoints.server.protocol.common import usage_wanted
from cadence.entrypoints.server.protocol.logprobs import TokenNames
from cadence.entrypoints.server.protocol.sampling import (
    EndpointFields,
    check_weight,
    model_max_tokens,
    priority_of,
    sampling_params,
)
from cadence.entrypoints.server.routes.state import ServerState, State
from cadence.media.chat_parts import split_media
from cadence.text.messages import MEDIA, check_messages

router = APIRouter(tags=["chat"])


@router.post("/v1/chat/completions", openapi_extra=body_schema(ChatCompletionBody))
async def create_chat_completion(request: Request, state: State) -> Response:
    job, view, size = await state.bodies.read(request, lambda raw: _prepare(raw, request, state), held=True)
    free_when_read(request, job.media)
    entry = state.admission.enter(request, size, job.params.n)
    run = ChatRun(job)
    events = admitted(entry, state.chat.events(run), check_event)
    if job.stream:
        chunks = ChatChunks(view)
        direct = DirectStream(lambda index, text, token_ids: chunks.of(run.read_text(index, text, token_ids)))
        started = await started_stream(events)
        state.llm.tap(job.request_id, direct)
        return EventStream(chunks.write(started), direct=direct)
    return json_response(await ChatAnswer(view).read(events))


def _prepare(raw: bytes, request: Request, state: ServerState) -> tuple[ChatJob, ChatView, int]:
    """The job, how its answer looks, and its estimated tokens."""
    body = parse_body(ChatCompletionBody, raw, state.ignored.of(request))
    name, model, job = checked_job(body, request, state)
    view = _view(body, state, {"id": name, "created": created(request.scope), "model": model})
    return job, view, job.estimated_tokens()


def checked_job(body: ChatCompletionBody, request: Request, state: ServerState) -> tuple[str, str, ChatJob]:
    """The name of the answer, the model's, and the job."""
    body.check()
    model = state.check_writer(body.model)
    name = f"chatcmpl-{body.request_id}" if body.request_id else request_id(request, "chatcmpl-")
    job = make_job(body, state, name, request)
    if body.tools:
        job = replace(job, id_seed=token(request.scope))
    if job.params.n > state.options.max_completions:
        raise InvalidRequestError(f"n must be at most {state.options.max_completions}", "n")
    check_weight(job.params, job.params.n)
    return name, model, job


def make_job(body: ChatCompletionBody, state: ServerState, name: str, request: Request) -> ChatJob:
    chosen = _chosen(body, state)
    messages, media = state.chat.split_media(body.messages, body.media_io_kwargs, body.mm_processor_kwargs)
    own_limit = body.max_completion_tokens or body.max_tokens
    beam = beam_params(body, chosen, state.llm.config.model.max_model_len) if body.use_beam_search else None
    params = shape_of(beam, chosen) if beam else sampling_params(body, state.default_sampling, chosen)
    continues = bool(body.continue_final_message)
    return ChatJob(
        request_id=state.tenants.engine_id(request.scope, name),
        messages=messages,
        media=media,
        params=params,
        stream=bool(body.stream),
        tools=body.tools or (),
        tool_choice=body.choice(),
        parallel_calls=body.parallel_tool_calls is not False,
        add_generation_prompt=not continues if body.add_generation_prompt is None else body.add_generation_prompt,
        continue_final_message=continues,
        chat_template=body.chat_template or "",
        template_kwargs=body.template_kwargs(),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        tenant=tenant_of(request.scope),
        data_parallel_rank=state.data_parallel_rank(request),
        truncation=Truncation(body.truncate_prompt_tokens, body.truncation_side),
        add_special_tokens=bool(body.add_special_tokens),
        priority=priority_of(body, request.headers),
        adapter=state.adapters.of(body.model),
        beam=beam,
        max_output=own_limit,
        sent_names={**chosen.sent_names, "prompt": "messages"},
    )


def _chosen(body: ChatCompletionBody, state: ServerState) -> EndpointFields:
    limit = body.max_completion_tokens or body.max_tokens
    names = {"logprobs": "top_logprobs"}
    if body.max_completion_tokens:
        names["max_tokens"] = "max_completion_tokens"
    limit = model_max_tokens(state.default_sampling) if limit is None else limit
    logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return EndpointFields(limit, logprobs, names, body.logprob_token_ids)


def _view(body: ChatCompletionBody, state: ServerState, base: dict[str, Any]) -> ChatView:
    options = state.options
    usage, continuous = usage_wanted(body.stream_options, options.enable_force_include_usage)
    return ChatView(
        base=base,
        names=TokenNames(state.llm.tokenizer, body.return_tokens_as_token_ids or options.return_tokens_as_token_ids),
        role=options.response_role,
        n=body.n or 1,
        echo=_echo(body.messages, options.response_role) if body.echo else "",
        top_logprobs=_shown_logprobs(body),
        token_ids=bool(body.return_token_ids),
        drafted=body.speculative is not None and bool(body.speculative.return_drafted),
        prompt_text=bool(body.return_prompt_text),
        reasoning=body.include_reasoning is not False,
        reasons=state.chat.separates_reasoning,
        parallel_calls=body.parallel_tool_calls is not False,
        calls_demanded=body.choice() not in ("none", "auto"),
        called_by_name=body.choice() not in ("none", "auto", "required"),
        include_usage=usage,
        continuous_usage=continuous,
        usage_details=options.enable_prompt_tokens_details,
    )


def _shown_logprobs(body: ChatCompletionBody) -> int | None:
    """Tokens that are asked for by id are all shown."""
    if not body.logprobs:
        return None
    return -1 if body.logprob_token_ids else body.top_logprobs or 0


def _echo(messages: list[dict[str, Any]], role: str) -> str:
    """The text of the last message, where it is the answer's own beginning."""
    last: Mapping[str, Any] = check_messages(split_media(messages)[0], MEDIA)[-1]
    if last["role"] != role or last["content"] is None:
        return ""
    content = last["content"]
    return (
        content
        if isinstance(content, str)
        else "\n".join(part["text"] for part in content if part["type"] not in MEDIA)
    )


def prepare_job(body: ChatCompletionBody, state: ServerState, name: str, request: Request) -> tuple[ChatJob, ChatView]:
    """One conversation of several in a request."""
    base = {"id": name, "created": created(request.scope), "model": state.check_model(body.model)}
    return make_job(body, state, name, request), _view(body, state, base)

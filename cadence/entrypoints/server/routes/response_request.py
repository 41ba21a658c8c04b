"""From a request to /v1/responses to the turn that answers it."""

from __future__ import annotations

import dataclasses
import secrets
from typing import Any

import msgspec
from starlette.requests import Request

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.protocol.logprobs import TokenNames
from cadence.entrypoints.server.protocol.response_items import put_in_place
from cadence.entrypoints.server.protocol.response_messages import MORE_TOOLS, open_kind, to_messages
from cadence.entrypoints.server.protocol.response_raw import NoRawMessages, RawMessages
from cadence.entrypoints.server.protocol.response_tools import ResponseTools
from cadence.entrypoints.server.protocol.response_view import response_view
from cadence.entrypoints.server.protocol.responses import ResponsesBody
from cadence.entrypoints.server.protocol.responses_answer import ResponseAnswer
from cadence.entrypoints.server.protocol.sampling import EndpointFields, model_max_tokens, priority_of, sampling_params
from cadence.entrypoints.server.responses.event_log import EventLog, NullLog
from cadence.entrypoints.server.responses.store import RunningResponse
from cadence.entrypoints.server.responses.turn import PriorContext, Turn
from cadence.entrypoints.server.routes.state import ServerState

Items = list[dict[str, Any]]
SENT_NAMES = {  # of what the engine knows -> what clients know
    "max_tokens": "max_output_tokens", "prompt": "input", "logprobs": "top_logprobs",
}  # fmt: skip


def prepare(body: ResponsesBody, model: str, earlier: PriorContext, state: ServerState, request: Request) -> Turn:
    limit = state.options.max_body_bytes
    if len(earlier.conversation) > limit:
        message = f"the conversation is larger than the limit of {limit} bytes"
        raise InvalidRequestError(message, "previous_response_id")
    before: Items = msgspec.json.decode(earlier.conversation)
    items = [*before, *put_in_place(body.items(), earlier.referenced, limit)]
    tools = ResponseTools(body.tools or (), body.ignored)
    for number, item in enumerate(items):
        if item.get("type") == MORE_TOOLS:
            tools.add_from(item, f"input[{number - len(before)}]")
    messages = to_messages(items, len(before), body.instructions, body.ignored)
    response_id = f"resp_{secrets.token_hex(24)}"
    name = f"{response_id}-{body.request_id}" if body.request_id else response_id
    job = _job(body, messages, tools, state, request, state.tenants.engine_id(request.scope, name))
    job = _continued(job, open_kind(items))
    names = TokenNames(state.llm.tokenizer, as_ids=False)
    raw = RawMessages(state.llm.tokenizer) if body.enable_response_messages else NoRawMessages()
    answer = ResponseAnswer(response_view(response_id, model, body, job.params, tools, names), raw)
    log = EventLog() if body.background and body.stream else NullLog()
    running = RunningResponse(job.request_id, answer.snapshot, log)
    return Turn(job, answer, items, body.store is not False, running)


def _job(
    body: ResponsesBody, messages: Items, tools: ResponseTools, state: ServerState, request: Request, engine_id: str
) -> ChatJob:
    defaults = state.default_sampling
    limit = model_max_tokens(defaults) if body.max_output_tokens is None else body.max_output_tokens
    choice = tools.choose(body.tool_choice)
    params = sampling_params(
        body, defaults, EndpointFields(limit, body.num_logprobs(), SENT_NAMES, structured=body.structured())
    )
    if params.logprobs is not None:
        # In one piece, those of thoughts and of the message are not told apart.
        params.output_kind = RequestOutputKind.DELTA
    return ChatJob(
        request_id=engine_id,
        messages=messages,
        params=params,
        stream=bool(body.stream),
        tools=tools.chat,
        tool_choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        chat_template=body.chat_template or "",
        template_kwargs=body.template_kwargs(),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        priority=priority_of(body, request.headers),
        adapter=state.adapters.of(body.model),
        sent_names=SENT_NAMES,
    )


def _continued(job: ChatJob, kind: str) -> ChatJob:
    """`kind` of the item that the model goes on with; a thought without a word is no more than a beginning."""
    last = job.messages[-1] if job.messages else {}
    is_thought = kind == "reasoning" and last.keys() == {"role", "content", "reasoning_content"} and not last["content"]
    if kind != "message" and not is_thought:
        return job
    options = {"continue_final_message": True, "continue_thought": is_thought}
    return dataclasses.replace(job, add_generation_prompt=False, **options)

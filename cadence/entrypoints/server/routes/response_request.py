"""From a request to /v1/responses to the turn that answers it."""

from __future__ import annotations

import dataclasses
import secrets
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.requests import Request

from cadence.core.contract.response_messages import ResponseJob, ResponseOrigin
from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import parse_body
from cadence.entrypoints.server.protocol.logprobs import TokenNames
from cadence.entrypoints.server.protocol.responses.response_items import put_in_place
from cadence.entrypoints.server.protocol.responses.response_messages import MORE_TOOLS, open_kind, to_messages
from cadence.entrypoints.server.protocol.responses.response_raw import NoRawMessages, RawMessages
from cadence.entrypoints.server.protocol.responses.response_tools import ResponseTools
from cadence.entrypoints.server.protocol.responses.response_view import response_view
from cadence.entrypoints.server.protocol.responses.responses import ResponsesBody
from cadence.entrypoints.server.protocol.responses.responses_answer import ResponseAnswer
from cadence.entrypoints.server.protocol.sampling import EndpointFields, model_max_tokens, priority_of, sampling_params
from cadence.entrypoints.server.responses.client import LocalRun
from cadence.entrypoints.server.responses.event_writer import EventWriter
from cadence.entrypoints.server.responses.truncation import truncate_to_fit
from cadence.entrypoints.server.responses.turn import PriorContext, TokenRecord, Turn
from cadence.entrypoints.server.routes.state import ServerState

Items = list[dict[str, Any]]
KEPT_HEADERS = ("x-vllm-priority", "x-data-parallel-rank")  # by a response in the background
SENT_NAMES = {  # of what the engine knows -> what clients know
    "max_tokens": "max_output_tokens", "prompt": "input", "logprobs": "top_logprobs",
}  # fmt: skip


@dataclasses.dataclass(frozen=True, slots=True)
class ResponseRequest:
    """A request to /v1/responses, now or made again where its process is gone."""

    body: ResponsesBody
    raw: bytes  # the body as it came
    earlier: PriorContext
    request: Request
    origin: ResponseOrigin
    sent_events: Sequence[bytes] = ()  # of a response that is made again
    told_tokens: Sequence[int] = ()

    @property
    def is_background(self) -> bool:
        return bool(self.body.background)

    def start(self) -> dict[str, Any]:
        """What the store is told of it."""
        keeps_events = self.is_background and bool(self.body.stream)
        return {"is_background": self.is_background, "keeps_events": keeps_events, "job": self._job()}

    def _job(self) -> ResponseJob | None:
        if not self.is_background:
            return None
        given, earlier = self.request.headers, self.earlier
        headers = {name: given[name] for name in KEPT_HEADERS if name in given}
        return ResponseJob(self.origin, self.raw, earlier.conversation, dict(earlier.referenced), headers)


def new_origin() -> ResponseOrigin:
    return ResponseOrigin(f"resp_{secrets.token_hex(24)}", int(time.time()), secrets.randbits(63))


def read_body(raw: bytes, request: Request, state: ServerState) -> ResponsesBody:
    body = parse_body(ResponsesBody, raw, state.ignored.of(request))
    body.check()
    return body


async def make_turn(asked: ResponseRequest, model: str, size: int, state: ServerState) -> Turn:
    """size: bytes of what it is made of"""
    turn = await state.bodies.run(size, prepare, asked, model, state)
    if asked.body.truncation == "auto":
        fit = (turn.job, turn.items, asked.body.instructions, state.chat, state.llm.config.model.max_model_len)
        turn = turn.shortened(*await truncate_to_fit(*fit))
    return turn


def prepare(asked: ResponseRequest, model: str, state: ServerState) -> Turn:
    body, earlier, origin = asked.body, asked.earlier, asked.origin
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
    name = f"{origin.id}-{body.request_id}" if body.request_id else origin.id
    engine_id = state.tenants.engine_id(asked.request.scope, name)
    job = _job(body, messages, tools, state, asked.request, engine_id)
    job = _continued(job, open_kind(items))
    tokens = TokenRecord(len(asked.told_tokens))
    if asked.is_background:
        job = _resumable(job, asked, tokens)
    names = TokenNames(state.llm.tokenizer, as_ids=False)
    raw = RawMessages(state.llm.tokenizer) if body.enable_response_messages else NoRawMessages()
    answer = ResponseAnswer(response_view(origin, model, body, job.params, tools, names), raw)
    writer = EventWriter(asked.sent_events)
    kept = body.store is not False
    return Turn(job, answer, items, kept, LocalRun(job.request_id), writer, tokens, asked.start())


def _resumable(job: ChatJob, asked: ResponseRequest, tokens: TokenRecord) -> ChatJob:
    """Another process would say the same. Tokens with logprobs are computed again: those of earlier ones are not
    kept."""
    if job.params.seed is None:
        job.params.seed = asked.origin.seed
    if job.params.logprobs is not None:
        return dataclasses.replace(job, id_seed=asked.origin.id)
    return dataclasses.replace(job, id_seed=asked.origin.id, told_tokens=asked.told_tokens, record=tokens.add)


def _job(
    body: ResponsesBody, messages: Items, tools: ResponseTools, state: ServerState, request: Request, engine_id: str
) -> ChatJob:
    defaults = state.default_sampling
    limit = model_max_tokens(defaults) if body.max_output_tokens is None else body.max_output_tokens
    choice = tools.choose(body.tool_choice)
    messages, media = state.chat.split_media(messages)
    params = sampling_params(
        body, defaults, EndpointFields(limit, body.num_logprobs(), SENT_NAMES, structured=body.structured())
    )
    if params.logprobs is not None:
        # In one piece, those of thoughts and of the message are not told apart.
        params.output_kind = RequestOutputKind.DELTA
    return ChatJob(
        request_id=engine_id,
        messages=messages,
        media=media,
        params=params,
        stream=bool(body.stream),
        tools=tools.chat,
        tool_choice=choice,
        parallel_calls=body.parallel_tool_calls is not False,
        chat_template=body.chat_template or "",
        template_kwargs=body.template_kwargs(),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        tenant=tenant_of(request.scope),
        data_parallel_rank=state.data_parallel_rank(request),
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

"""One response on its way: what it goes on from, what the model is told, what it says, and what is kept of it."""

from __future__ import annotations

import dataclasses
import logging
import secrets
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request

from cadence.core.errors import InvalidRequestError
from cadence.core.sampling_params import RequestOutputKind
from cadence.entrypoints.openai.chat_choice import NO_CALL
from cadence.entrypoints.openai.errors import ApiError, not_found, reply_for
from cadence.entrypoints.openai.events import ChatEvent, ChatJob, ChoiceEnd
from cadence.entrypoints.openai.logprobs import TokenNames
from cadence.entrypoints.openai.protocol.response_items import ids_of, put_in_place, referenced
from cadence.entrypoints.openai.protocol.response_messages import MORE_TOOLS, open_kind, to_messages
from cadence.entrypoints.openai.protocol.response_raw import NoRawMessages, RawMessages
from cadence.entrypoints.openai.protocol.response_tools import ResponseTools
from cadence.entrypoints.openai.protocol.response_view import response_view
from cadence.entrypoints.openai.protocol.responses import ResponsesBody
from cadence.entrypoints.openai.protocol.responses_answer import EventWriter, ResponseAnswer, StreamEvent
from cadence.entrypoints.openai.response_log import EventLog, NullLog
from cadence.entrypoints.openai.response_store import RunningResponse, StoredResponse, TenantResponses
from cadence.entrypoints.openai.sampling import Chosen, model_max_tokens, priority_of, sampling_params
from cadence.entrypoints.openai.state import ServerState
from cadence.entrypoints.openai.stream import Begun, encode_json, raise_failure

logger = logging.getLogger("cadence.server")

Items = list[dict[str, Any]]
SENT_NAMES = {  # of what the engine knows -> what clients know
    "max_tokens": "max_output_tokens", "prompt": "input", "logprobs": "top_logprobs",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Earlier:
    """What a response goes on from: conversations, as JSON."""

    conversation: bytes
    referenced: Mapping[str, bytes]  # item id -> the conversation that has it

    @property
    def size(self) -> int:
        return len(self.conversation) + sum(map(len, set(self.referenced.values())))


@dataclass(frozen=True, slots=True)
class Turn:
    job: ChatJob
    answer: ResponseAnswer
    items: Items  # all that the model is told
    kept: bool
    running: RunningResponse

    def shortened(self, job: ChatJob, dropped: int) -> Turn:
        self.answer.dropped_items = dropped
        return dataclasses.replace(self, job=job)

    def check(self, event: ChatEvent) -> None:
        """A choice that ended badly raises, unless the client wanted it to end."""
        if type(event) is not ChoiceEnd or (event.finish_reason == "abort" and self.running.cancelled):
            return
        if event.stop_reason == NO_CALL:
            raise ApiError(400, NO_CALL, param="tool_choice", code="tool_calls_not_produced")
        raise_failure(event.finish_reason, event.stop_reason)

    async def write(
        self, store: TenantResponses, events: AsyncGenerator[ChatEvent, None] | Begun[ChatEvent]
    ) -> AsyncGenerator[bytes, None]:
        """The response's own events. However it ends, it is known until then and kept afterwards."""
        answer, writer = self.answer, EventWriter(self.running.log)
        store.running[answer.id] = self.running
        try:
            async with aclosing(events):
                yield writer.write(answer.begin())
                async for event in events:
                    if told := answer.read(event):
                        yield writer.write(told)
            yield self._end(writer, answer.finish(), store)
        except Exception as error:
            reply = reply_for(error)
            if reply.is_bug:
                logger.error("a response broke", exc_info=error)
            yield self._end(writer, answer.fail(reply), store)
        finally:
            if answer.is_open:  # the client left
                self._end(writer, answer.finish(), store)
            store.running.pop(answer.id, None)

    def _end(self, writer: EventWriter, last: list[StreamEvent], store: TenantResponses) -> bytes:
        chunk = writer.write(last)
        self.running.log.close()
        self.keep(store)
        return chunk

    def keep(self, store: TenantResponses) -> None:
        if self.kept:
            items = [*self.items, *self.answer.history()]
            body, events = encode_json(self.answer.snapshot()), tuple(self.running.log.events)
            stored = StoredResponse(body, encode_json(items), len(self.items), tuple(ids_of(items)), events)
            store.keep(self.answer.id, stored)


def earlier_of(body: ResponsesBody, store: TenantResponses) -> Earlier:
    """On the event loop, which the store belongs to."""
    conversations = {}
    for item_id, where in referenced(body.items()).items():
        stored = store.holding(item_id)
        if stored is None:
            raise not_found(f"Item with id '{item_id[:100]}' not found: only stored responses keep their items.", where)
        conversations[item_id] = stored.items
    return Earlier(_previous(body.previous_response_id, store), conversations)


def prepare(body: ResponsesBody, model: str, earlier: Earlier, state: ServerState, request: Request) -> Turn:
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
    job = _going_on(job, open_kind(items))
    names = TokenNames(state.llm.tokenizer, as_ids=False)
    raw = RawMessages(state.llm.tokenizer) if body.enable_response_messages else NoRawMessages()
    answer = ResponseAnswer(response_view(response_id, model, body, job.params, tools, names), raw)
    log = EventLog() if body.background and body.stream else NullLog()
    running = RunningResponse(job.request_id, answer.snapshot, log)
    return Turn(job, answer, items, body.store is not False, running)


def _job(
    body: ResponsesBody, messages: Items, tools: ResponseTools, state: ServerState, request: Request, engine_id: str
) -> ChatJob:
    defaults = state.llm.default_sampling
    limit = model_max_tokens(defaults) if body.max_output_tokens is None else body.max_output_tokens
    choice = tools.choose(body.tool_choice)
    params = sampling_params(body, defaults, Chosen(limit, body.num_logprobs(), SENT_NAMES))
    if params.logprobs is not None:
        params.output_kind = (
            RequestOutputKind.DELTA
        )  # in one piece, those of thoughts and of the message are not told apart
    return ChatJob(
        request_id=engine_id,
        messages=messages,
        params=params,
        stream=bool(body.stream),
        tools=tools.chat,
        tool_choice=choice,
        chat_template=body.chat_template or "",
        template_kwargs=body.template_kwargs(),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        priority=priority_of(body, request.headers),
        sent_names=SENT_NAMES,
    )


def _going_on(job: ChatJob, kind: str) -> ChatJob:
    """`kind` of the item that the model goes on with; a thought without a word is no more than a beginning."""
    last = job.messages[-1] if job.messages else {}
    is_thought = kind == "reasoning" and last.keys() == {"role", "content", "reasoning_content"} and not last["content"]
    if kind != "message" and not is_thought:
        return job
    options = {"continue_final_message": True, "continue_thought": is_thought}
    return dataclasses.replace(job, add_generation_prompt=False, **options)


def _previous(response_id: str | None, store: TenantResponses) -> bytes:
    """The conversation up to and with an earlier response."""
    if not response_id:
        return b"[]"
    field = "previous_response_id"
    if response_id in store.running:
        raise InvalidRequestError(f"{field} names a response that is still in progress", field)
    stored = store.get(response_id)
    if stored is None:
        message = f"Previous response with id '{response_id}' not found."
        raise ApiError(400, message, param=field, code="previous_response_not_found")
    return stored.items

"""/v1/responses: create, stream, get, cancel, delete, and go on from an earlier one."""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.bodies import BODY
from cadence.entrypoints.openai.chat_choice import NO_CALL
from cadence.entrypoints.openai.errors import ApiError, not_found, reply_for
from cadence.entrypoints.openai.events import ChatEvent, ChatJob, ChoiceEnd
from cadence.entrypoints.openai.protocol.body import body_schema, parse_body
from cadence.entrypoints.openai.protocol.response_items import ItemPage, listed
from cadence.entrypoints.openai.protocol.responses import ResponsesBody, to_messages
from cadence.entrypoints.openai.protocol.responses_answer import EventWriter, ResponseAnswer
from cadence.entrypoints.openai.response_store import ResponseStore, RunningResponse, TenantResponses
from cadence.entrypoints.openai.sampling import Chosen, model_max_tokens, priority_of, sampling_params
from cadence.entrypoints.openai.state import ServerState, State
from cadence.entrypoints.openai.stream import (
    Begun,
    EventStream,
    admitted,
    begun,
    encode_json,
    json_response,
    raise_failure,
)
from cadence.entrypoints.openai.tenants import tenant_of

logger = logging.getLogger("cadence.server")
router = APIRouter(tags=["responses"])

Items = list[dict[str, Any]]
SENT_NAMES = {"max_tokens": "max_output_tokens", "prompt": "input"}  # of what the engine knows -> what clients know


async def response_store(request: Request) -> TenantResponses:
    """The tenant's part of the application's store, which is made on first use."""
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = ResponseStore()
    store: ResponseStore = state.responses
    return store.of(tenant_of(request.scope))


Store = Annotated[TenantResponses, Depends(response_store)]


@dataclass(frozen=True, slots=True)
class _Turn:
    """One response on its way: what it answers, what it says, and where it goes."""

    answer: ResponseAnswer
    items: Items  # all that the model was told
    store: TenantResponses
    kept: bool
    running: RunningResponse

    def check(self, event: ChatEvent) -> None:
        """A choice that ended badly raises, unless the client wanted it to end."""
        if type(event) is not ChoiceEnd or (event.finish_reason == "abort" and self.running.cancelled):
            return
        if event.stop_reason == NO_CALL:
            raise ApiError(400, NO_CALL, param="tool_choice", code="tool_calls_not_produced")
        raise_failure(event.finish_reason, event.stop_reason)

    def keep(self) -> None:
        if self.kept:
            items = [*self.items, *self.answer.history()]
            body = encode_json(self.answer.snapshot())
            self.store.keep(self.answer.id, body, encode_json(items), len(self.items))


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
async def create_response(request: Request, state: State, store: Store) -> Response:
    body = await state.bodies.read(request, lambda raw: _read(raw, request, state))
    model = state.check_model(body.model)
    response_id = f"resp_{secrets.token_hex(24)}"
    stored = _earlier(body.previous_response_id, store)
    work = (body, stored, state, response_id, request)
    items, job, size = await state.bodies.run(request.scope[BODY].size + len(stored), _prepare, *work)
    answer = ResponseAnswer(response_id, model, body, job.params)
    turn = _Turn(answer, items, store, body.store is not False, RunningResponse(job.request_id, answer.snapshot))
    entry = state.admission.enter(request, size)
    events = admitted(entry, state.chat.run(job), turn.check)
    if body.stream:
        return EventStream(_chunks(turn, await begun(events)), last=b"")
    async with aclosing(events):
        async for event in events:
            answer.read(event)
    answer.finish()
    turn.keep()
    return json_response(answer.snapshot())


@router.get("/v1/responses/{response_id}")
async def get_response(response_id: str, request: Request, store: Store) -> Response:
    for name, value in request.query_params.items():
        if name != "stream" or value.lower() not in ("false", "0", ""):
            raise InvalidRequestError(f"{name} is not supported: responses are given whole", name[:80])
    running = store.running.get(response_id)
    if running is not None:
        return json_response(running.snapshot())
    return Response(_stored(response_id, store), media_type="application/json")


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(response_id: str, request: Request, store: Store) -> Response:
    """What the model was told, earlier turns included; the last comes first unless `order` is asc."""
    page = ItemPage.of(request.query_params)
    if response_id in store.running:
        raise InvalidRequestError(f"response {response_id} is still in progress", "response_id")
    stored = store.get(response_id)
    if stored is None:
        raise _unknown(response_id)
    items: Items = msgspec.json.decode(stored.items)
    return json_response(page.read(listed(items[: stored.num_input], response_id)))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, state: State, store: Store) -> Response:
    running = store.running.get(response_id)
    if running is None:
        status = msgspec.json.decode(_stored(response_id, store))["status"]
        raise InvalidRequestError(f"response {response_id} is {status}: only what is in progress can be cancelled")
    running.cancelled = True
    await state.llm.abort(running.request_id)
    return json_response({**running.snapshot(), "status": "cancelled"})


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, store: Store) -> Response:
    if not store.drop(response_id):
        raise _unknown(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


async def _chunks(turn: _Turn, events: Begun[ChatEvent]) -> AsyncGenerator[bytes, None]:
    answer, writer = turn.answer, EventWriter()
    turn.store.running[answer.id] = turn.running
    try:
        async with aclosing(events):
            yield writer.write(answer.begin())
            async for event in events:
                if told := answer.read(event):
                    yield writer.write(told)
        last = answer.finish()
        turn.keep()
        yield writer.write(last)
    except Exception as error:
        reply = reply_for(error)
        if reply.is_bug:
            logger.error("a response broke", exc_info=error)
        last = answer.fail(reply)
        turn.keep()
        yield writer.write(last)
    finally:
        if answer.status == "in_progress":  # the client left
            answer.finish()
            turn.keep()
        del turn.store.running[answer.id]


def _read(raw: bytes, request: Request, state: ServerState) -> ResponsesBody:
    body = parse_body(ResponsesBody, raw, state.ignored.of(request))
    body.check()
    return body


def _prepare(
    body: ResponsesBody, stored: bytes, state: ServerState, response_id: str, request: Request
) -> tuple[Items, ChatJob, int]:
    """All that the model is told, the job, and its estimated tokens."""
    if len(stored) > state.options.max_body_bytes:
        message = f"the conversation is larger than the limit of {state.options.max_body_bytes} bytes"
        raise InvalidRequestError(message, "previous_response_id")
    items: Items = [*msgspec.json.decode(stored), *body.items()]
    job = _job(body, items, state, response_id, request)
    return items, job, job.estimated_tokens()


def _job(body: ResponsesBody, items: Items, state: ServerState, response_id: str, request: Request) -> ChatJob:
    defaults = state.llm.default_sampling
    limit = model_max_tokens(defaults) if body.max_output_tokens is None else body.max_output_tokens
    tools = body.chat_tools()
    name = f"{response_id}-{body.request_id}" if body.request_id else response_id
    return ChatJob(
        request_id=state.tenants.engine_id(request.scope, name),
        messages=to_messages(items, body.instructions),
        params=sampling_params(body, defaults, Chosen(limit, None, SENT_NAMES)),
        stream=bool(body.stream),
        tools=tools,
        tool_choice=body.choice(),
        chat_template=body.chat_template or "",
        template_kwargs=body.template_kwargs(),
        cache_salt=state.tenants.cache_salt(request.scope, body.cache_salt),
        priority=priority_of(body, request.headers),
        sent_names=SENT_NAMES,
    )


def _earlier(response_id: str | None, store: TenantResponses) -> bytes:
    """The conversation up to and with an earlier response, as JSON."""
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


def _stored(response_id: str, store: TenantResponses) -> bytes:
    stored = store.get(response_id)
    if stored is None:
        raise _unknown(response_id)
    return stored.body


def _unknown(response_id: str) -> ApiError:
    return not_found(f"Response with id '{response_id[:100]}' not found.", "response_id")

"""/v1/responses: create, stream, get, cancel, delete, and go on from an earlier one."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.openai.bodies import BODY
from cadence.entrypoints.openai.errors import ApiError, not_found, reply_for
from cadence.entrypoints.openai.events import ChatEvent
from cadence.entrypoints.openai.protocol.body import body_schema, parse_body
from cadence.entrypoints.openai.protocol.response_items import ItemPage, listed
from cadence.entrypoints.openai.protocol.responses import ResponsesBody
from cadence.entrypoints.openai.protocol.responses_answer import EventWriter
from cadence.entrypoints.openai.response_store import ResponseStore, TenantResponses
from cadence.entrypoints.openai.response_turn import Turn, earlier_of, prepare
from cadence.entrypoints.openai.state import ServerState, State
from cadence.entrypoints.openai.stream import Begun, EventStream, admitted, begun, json_response
from cadence.entrypoints.openai.tenants import tenant_of

logger = logging.getLogger("cadence.server")
router = APIRouter(tags=["responses"])

Items = list[dict[str, Any]]


async def response_store(request: Request) -> TenantResponses:
    """The tenant's part of the application's store, which is made on first use."""
    state = request.app.state
    if not hasattr(state, "responses"):
        state.responses = ResponseStore()
    store: ResponseStore = state.responses
    return store.of(tenant_of(request.scope))


Store = Annotated[TenantResponses, Depends(response_store)]


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
async def create_response(request: Request, state: State, store: Store) -> Response:
    body = await state.bodies.read(request, lambda raw: _read(raw, request, state))
    model = state.check_model(body.model)
    earlier = earlier_of(body, store)
    size = request.scope[BODY].size + earlier.size
    turn = await state.bodies.run(size, prepare, body, model, earlier, state, request)
    entry = state.admission.enter(request, turn.job.estimated_tokens())
    events = admitted(entry, state.chat.run(turn.job), turn.check)
    if body.stream:
        return EventStream(_chunks(turn, store, await begun(events)), last=b"")
    async with aclosing(events):
        async for event in events:
            turn.answer.read(event)
    turn.answer.finish()
    turn.keep(store)
    return json_response(turn.answer.snapshot())


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


async def _chunks(turn: Turn, store: TenantResponses, events: Begun[ChatEvent]) -> AsyncGenerator[bytes, None]:
    answer, writer = turn.answer, EventWriter()
    store.running[answer.id] = turn.running
    try:
        async with aclosing(events):
            yield writer.write(answer.begin())
            async for event in events:
                if told := answer.read(event):
                    yield writer.write(told)
        last = answer.finish()
        turn.keep(store)
        yield writer.write(last)
    except Exception as error:
        reply = reply_for(error)
        if reply.is_bug:
            logger.error("a response broke", exc_info=error)
        last = answer.fail(reply)
        turn.keep(store)
        yield writer.write(last)
    finally:
        if answer.status == "in_progress":  # the client left
            answer.finish()
            turn.keep(store)
        del store.running[answer.id]


def _read(raw: bytes, request: Request, state: ServerState) -> ResponsesBody:
    body = parse_body(ResponsesBody, raw, state.ignored.of(request))
    body.check()
    return body


def _stored(response_id: str, store: TenantResponses) -> bytes:
    stored = store.get(response_id)
    if stored is None:
        raise _unknown(response_id)
    return stored.body


def _unknown(response_id: str) -> ApiError:
    return not_found(f"Response with id '{response_id[:100]}' not found.", "response_id")

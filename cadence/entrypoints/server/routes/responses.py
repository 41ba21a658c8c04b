"""/v1/responses: create, stream, get, cancel, delete, and go on from an earlier one."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.bodies import BODY
from cadence.entrypoints.server.http.errors import ApiError, not_found
from cadence.entrypoints.server.http.stream import EventStream, admitted, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import body_schema, parse_body
from cadence.entrypoints.server.protocol.response_items import ItemPage, listed
from cadence.entrypoints.server.protocol.response_query import ResponseQuery
from cadence.entrypoints.server.protocol.responses import ResponsesBody
from cadence.entrypoints.server.responses.background import cancel_background, check_background, start_in_background
from cadence.entrypoints.server.responses.event_log import replay
from cadence.entrypoints.server.responses.store import StoredResponse, TenantResponses
from cadence.entrypoints.server.responses.truncation import truncate_to_fit
from cadence.entrypoints.server.responses.turn import prior_context
from cadence.entrypoints.server.routes.response_request import prepare
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["responses"])

Items = list[dict[str, Any]]


async def response_store(request: Request, state: State) -> TenantResponses:
    """The tenant's part of the server's store."""
    return state.responses.of(tenant_of(request.scope))


Store = Annotated[TenantResponses, Depends(response_store)]


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
async def create_response(request: Request, state: State, store: Store) -> Response:
    body = await state.bodies.read(request, lambda raw: _read(raw, request, state))
    model = state.check_model(body.model)
    earlier = prior_context(body, store)
    size = request.scope[BODY].size + earlier.size
    turn = await state.bodies.run(size, prepare, body, model, earlier, state, request)
    if body.truncation == "auto":
        max_len = state.llm.config.model.max_model_len
        turn = turn.shortened(*await truncate_to_fit(turn.job, turn.items, body.instructions, state.chat, max_len))
    if body.background:
        check_background(store)
    entry = state.admission.enter(request, turn.job.estimated_tokens())
    events = admitted(entry, state.chat.run(turn.job), turn.check)
    if body.background:
        state.admission.outlives(request, entry)
        start_in_background(turn, store, events)
        return EventStream(turn.running.log.read(0), b"") if body.stream else json_response(turn.answer.snapshot())
    if body.stream:
        return EventStream(turn.write(store, await started_stream(events)), b"")
    async with aclosing(events):
        async for event in events:
            turn.answer.read(event)
    turn.answer.finish()
    turn.keep(store)
    return json_response(turn.answer.snapshot())


@router.get("/v1/responses/{response_id}")
async def get_response(response_id: str, request: Request, state: State, store: Store) -> Response:
    query = ResponseQuery.of(request.query_params, state.ignored.of(request))
    running = store.running.get(response_id)
    if running is not None and query.stream:
        running.log.check()
        return EventStream(running.log.read(query.start), b"")
    if running is not None:
        return json_response(running.snapshot())
    stored = _stored(response_id, store)
    if query.stream:
        return EventStream(replay(stored.events, query.start), b"")
    return Response(stored.body, media_type="application/json")


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(response_id: str, request: Request, store: Store) -> Response:
    """What the model was told, earlier turns included; the last comes first unless `order` is asc."""
    page = ItemPage.of(request.query_params)
    if response_id in store.running:
        raise InvalidRequestError(f"response {response_id} is still in progress", "response_id")
    stored = _stored(response_id, store)
    items: Items = msgspec.json.decode(stored.items)
    return json_response(page.read(listed(items[: stored.num_input], response_id)))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, state: State, store: Store) -> Response:
    running = store.running.get(response_id)
    if running is None:
        return _cancelled(response_id, _stored(response_id, store))
    running.cancelled = True
    if running.task is None:
        await state.llm.abort(running.request_id)
    else:
        await cancel_background(running)
    return json_response({**running.snapshot(), "status": "cancelled"})


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, store: Store) -> Response:
    if response_id in store.running:
        raise InvalidRequestError(f"response {response_id} is still in progress: cancel it first", "response_id")
    if not store.drop(response_id):
        raise _unknown(response_id)
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _read(raw: bytes, request: Request, state: ServerState) -> ResponsesBody:
    body = parse_body(ResponsesBody, raw, state.ignored.of(request))
    body.check()
    return body


def _stored(response_id: str, store: TenantResponses) -> StoredResponse:
    stored = store.get(response_id)
    if stored is None:
        raise _unknown(response_id)
    return stored


def _unknown(response_id: str) -> ApiError:
    return not_found(f"Response with id '{response_id[:100]}' not found.", "response_id")


def _cancelled(response_id: str, stored: StoredResponse) -> Response:
    """What was cancelled before is so still; what is over cannot be."""
    response = msgspec.json.decode(stored.body)
    if (status := response["status"]) != "cancelled":
        begin = "" if response["background"] else "Cannot cancel a synchronous response. "
        raise InvalidRequestError(
            f"{begin}Response {response_id} is {status}: only what is in progress can be cancelled"
        )
    return Response(stored.body, media_type="application/json")

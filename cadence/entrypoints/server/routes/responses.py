"""/v1/responses: create, stream, get, cancel, delete, and go on from an earlier one."""

from __future__ import annotations

from contextlib import aclosing
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from cadence.core.contract.response_messages import ResponseState, StoredResponse
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.bodies import BODY
from cadence.entrypoints.server.http.stream import EventStream, admitted, json_response, started_stream
from cadence.entrypoints.server.http.tenants import tenant_of
from cadence.entrypoints.server.protocol.body import body_schema
from cadence.entrypoints.server.protocol.responses.response_items import ItemPage, listed
from cadence.entrypoints.server.protocol.responses.response_query import ResponseQuery
from cadence.entrypoints.server.protocol.responses.responses import ResponsesBody
from cadence.entrypoints.server.responses.background import announce, start_in_background, withdraw
from cadence.entrypoints.server.responses.client import TenantClient, check_events
from cadence.entrypoints.server.responses.store import MAX_AGE_S
from cadence.entrypoints.server.responses.turn import Turn, prior_context
from cadence.entrypoints.server.routes.response_request import ResponseRequest, make_turn, new_origin, read_body
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["responses"])

Items = list[dict[str, Any]]


async def response_store(request: Request, state: State) -> TenantClient:
    """The tenant's part of the server's store."""
    return state.responses.of(tenant_of(request.scope))


Store = Annotated[TenantClient, Depends(response_store)]


@router.post("/v1/responses", openapi_extra=body_schema(ResponsesBody))
async def create_response(request: Request, state: State, store: Store) -> Response:
    body, raw = await state.bodies.read(request, lambda raw: _read(raw, request, state))
    model = state.check_writer(body.model)
    earlier = await prior_context(body, store)
    asked = ResponseRequest(body, raw, earlier, request, new_origin())
    size = request.scope[BODY].size + earlier.size
    turn = await make_turn(asked, model, size, state)
    if body.background:
        return await _in_background(turn, request, state, store)
    entry = state.admission.enter(request, turn.job.estimated_tokens())
    events = admitted(entry, state.chat.run(turn.job), turn.check)
    if body.stream:
        return EventStream(turn.in_foreground(store, await started_stream(events)), b"")
    async with aclosing(events):
        async for event in events:
            turn.answer.read(event)
    turn.answer.finish()
    await turn.keep(store)
    return json_response(turn.answer.snapshot())


async def _in_background(turn: Turn, request: Request, state: ServerState, store: TenantClient) -> Response:
    await announce(turn, store)
    try:
        entry = state.admission.enter(request, turn.job.estimated_tokens())
    except BaseException:
        withdraw(turn, store)
        raise
    state.admission.outlives(request, entry)
    start_in_background(turn, store, admitted(entry, state.chat.run(turn.job), turn.check), MAX_AGE_S)
    if turn.job.stream:
        return EventStream(store.events(turn.answer.id, 0), b"")
    return json_response(turn.answer.snapshot())


@router.get("/v1/responses/{response_id}")
async def get_response(response_id: str, request: Request, state: State, store: Store) -> Response:
    query = ResponseQuery.of(request.query_params, state.ignored.of(request))
    reply = await store.get(response_id)
    if query.stream:
        check_events(reply.is_lost, reply.has_events)
        return EventStream(store.events(response_id, query.start), b"")
    return Response(reply.body if reply.stored is None else reply.stored.body, media_type="application/json")


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(response_id: str, request: Request, store: Store) -> Response:
    """What the model was told, earlier turns included; the last comes first unless `order` is asc."""
    page = ItemPage.of(request.query_params)
    stored = (await store.get(response_id)).stored
    if stored is None:
        raise InvalidRequestError(f"response {response_id} is still in progress", "response_id")
    items: Items = msgspec.json.decode(stored.items or b"[]")
    return json_response(page.read(listed(items[: stored.num_input], response_id)))


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(response_id: str, store: Store) -> Response:
    reply = await store.cancel(response_id)
    if reply.stored is not None:
        return _cancelled(response_id, reply.stored)
    return json_response({**msgspec.json.decode(reply.body), "status": "cancelled"})


@router.delete("/v1/responses/{response_id}")
async def delete_response(response_id: str, store: Store) -> Response:
    if (await store.drop(response_id)).state is ResponseState.RUNNING:
        raise InvalidRequestError(f"response {response_id} is still in progress: cancel it first", "response_id")
    return json_response({"id": response_id, "object": "response", "deleted": True})


def _read(raw: bytes, request: Request, state: ServerState) -> tuple[ResponsesBody, bytes]:
    """What came is held for responses that may be made again."""
    body = read_body(raw, request, state)
    return body, raw if body.background else b""


def _cancelled(response_id: str, stored: StoredResponse) -> Response:
    """What was cancelled before is so still; what is over cannot be."""
    response = msgspec.json.decode(stored.body)
    if (status := response["status"]) != "cancelled":
        begin = "" if response["background"] else "Cannot cancel a synchronous response. "
        raise InvalidRequestError(
            f"{begin}Response {response_id} is {status}: only what is in progress can be cancelled"
        )
    return Response(stored.body, media_type="application/json")

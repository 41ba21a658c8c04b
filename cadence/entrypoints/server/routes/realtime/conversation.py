"""/v1/realtime: a conversation over a WebSocket, whose responses take more of their prompts while they are written."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter
from starlette.websockets import WebSocket

from cadence.core.errors import CadenceError
from cadence.entrypoints.server.http.errors import ApiError, reply_for, route_path, unavailable
from cadence.entrypoints.server.routes.realtime.items import ConversationRoom
from cadence.entrypoints.server.routes.realtime.session import Session
from cadence.entrypoints.server.routes.state import ServerState, State

router = APIRouter(tags=["realtime"])
PATH = "/v1/realtime"
SUBPROTOCOL = "realtime"  # that OpenAI's clients in browsers offer
LOOK_S = 0.5  # between two looks at whether the server drains, or the client is idle
NORMAL, GOING_AWAY, TRY_LATER = 1000, 1001, 1013
OPEN = "realtime_sessions"  # attribute of the application's state: open sockets
ROOM = "realtime_room"  # … what their conversations may hold together


@router.websocket(PATH)
async def converse(socket: WebSocket, state: State) -> None:
    try:
        model = _checked(socket, state)
    except CadenceError as error:
        await reply_for(error).response(route_path(socket.scope))(socket.scope, socket.receive, socket.send)
        return
    shared = socket.app.state
    setattr(shared, OPEN, getattr(shared, OPEN, 0) + 1)
    try:
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None)
        await _serve(socket, state, Session(socket, state, model, _room(shared, state)))
    except OSError:
        pass  # the client is gone
    finally:
        setattr(shared, OPEN, getattr(shared, OPEN) - 1)


def _room(shared: Any, state: ServerState) -> ConversationRoom:
    if not hasattr(shared, ROOM):
        setattr(shared, ROOM, ConversationRoom(state.options.max_held_body_bytes))
    room: ConversationRoom = getattr(shared, ROOM)
    return room


def _checked(socket: WebSocket, state: ServerState) -> str:
    """-> the model's name. Raises why there is no session."""
    if state.admission.draining:
        raise unavailable("The server is shutting down and takes no new sessions.")
    _check_origin(socket, state.options.allowed_origins)
    most = state.options.max_realtime_sessions
    if getattr(socket.app.state, OPEN, 0) >= most:
        raise ApiError(429, f"The server is at its limit of {most} sessions; try again later.",
                       headers={"Retry-After": "10"})  # fmt: skip
    state.data_parallel_rank(socket)  # a wrong one is refused now, not at the first response
    return state.check_writer(socket.query_params.get("model"))


def _check_origin(socket: WebSocket, allowed: Any) -> None:
    """A browser opens a socket for a page of another host without asking first."""
    origin = socket.headers.get("origin")
    if not origin or "*" in allowed or origin in allowed or urlsplit(origin).netloc == socket.headers.get("host"):
        return
    raise ApiError(403, "This server takes no sessions of pages from other hosts: see --allowed-origins.")


async def _serve(socket: WebSocket, state: ServerState, session: Session) -> None:
    await session.begin()
    receiving: asyncio.Task[Any] = asyncio.ensure_future(socket.receive())
    heard, idle = time.monotonic(), state.options.realtime_idle_timeout
    try:
        while True:
            await asyncio.wait({receiving}, timeout=LOOK_S)
            if receiving.done():
                message = receiving.result()
                if message["type"] == "websocket.disconnect":
                    return
                await session.receive(message.get("text") or message.get("bytes") or b"")
                receiving = asyncio.ensure_future(socket.receive())
                heard = time.monotonic()
            elif session.is_writing:
                heard = time.monotonic()
            elif state.admission.draining:
                return await socket.close(GOING_AWAY, "the server is shutting down")
            elif idle and time.monotonic() - heard > idle:
                return await socket.close(NORMAL, f"nothing came for {idle:g} s")
    finally:
        receiving.cancel()
        await session.close()

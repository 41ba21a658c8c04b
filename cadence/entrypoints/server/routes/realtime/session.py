"""One open socket: its settings, its conversation, and the response that is being written."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.errors import reply_for
from cadence.entrypoints.server.http.json_limits import JsonLimits, check_json
from cadence.entrypoints.server.routes.realtime.events import (
    ClientEvent,
    Settings,
    error_event,
    message_item,
    new_id,
    read_event,
    text_of_item,
)
from cadence.entrypoints.server.routes.realtime.items import ConversationRoom, SessionItems
from cadence.entrypoints.server.routes.realtime.response import RealtimeResponse
from cadence.entrypoints.server.routes.state import ServerState

logger = logging.getLogger("cadence.server")

MOST_INSTRUCTIONS = 1 << 20  # characters, of a session
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Session:
    def __init__(self, socket: WebSocket, state: ServerState, model: str, room: ConversationRoom) -> None:
        self._socket = socket
        self._state = state
        self._id = new_id("sess")
        self._settings = Settings(model=model)
        self._conversation = SessionItems(room, state.options.max_body_bytes)
        self._response: RealtimeResponse | None = None
        self._task: asyncio.Task[None] | None = None
        self._limits = JsonLimits.of(state.options)
        self._handlers: dict[str, Callable[[ClientEvent], Awaitable[None]]] = {
            "session.update": self._update,
            "conversation.item.create": self._add,
            "conversation.item.delete": self._delete,
            "response.create": self._respond,
            "response.cancel": self._cancel,
            "response.input_text.append": self._append,
        }

    @property
    def is_writing(self) -> bool:
        return self._task is not None and not self._task.done()

    async def begin(self) -> None:
        await self.send({"type": "session.created", "session": self._shown()})

    async def receive(self, content: str | bytes) -> None:
        """An event of the client. What is wrong with it is told, and the session goes on."""
        event: ClientEvent | None = None
        try:
            event = await self._state.bodies.run(len(content), self._read, content)
            handler = self._handlers.get(event.type)
            if handler is None:
                known = ", ".join(sorted(self._handlers))
                raise InvalidRequestError(f"unknown event {event.type[:80]!r}; known: {known}", "type")
            await handler(event)
        except OSError:
            raise
        except Exception as error:
            await self.tell(error, event.event_id if event is not None else None)

    def _read(self, content: str | bytes) -> ClientEvent:
        raw = content.encode() if isinstance(content, str) else content
        check_json(raw, self._limits)
        return read_event(raw)

    async def tell(self, error: Exception, event_id: str | None = None) -> None:
        if reply_for(error).is_bug:
            logger.error("an event of /v1/realtime failed", exc_info=error)
        await self.send(error_event(error, event_id))

    async def send(self, event: dict[str, Any]) -> None:
        """Raises an OSError where the client has left, or does not read."""
        text = msgspec.json.encode({"event_id": new_id("event"), **event}).decode()
        async with asyncio.timeout(self._state.options.write_timeout or None):
            try:
                await self._socket.send_text(text)
            except (RuntimeError, WebSocketDisconnect) as error:  # as Starlette says that it is closed
                raise ConnectionError("the socket is closed") from error

    async def wait_written(self) -> None:
        if self._task is not None:
            await asyncio.wait({self._task})

    async def close(self) -> None:
        """What is being written ends."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._conversation.clear()

    def _shown(self) -> dict[str, Any]:
        return {"id": self._id, "object": "realtime.session", "type": "realtime", "output_modalities": ["text"],
                **self._settings.shown()}  # fmt: skip

    async def _update(self, event: ClientEvent) -> None:
        changed = self._settings.changed(event.session or Settings())
        self._state.check_writer(changed.model or None)
        if isinstance(changed.instructions, str) and len(changed.instructions) > MOST_INSTRUCTIONS:
            message = f"instructions have at most {MOST_INSTRUCTIONS} characters"
            raise InvalidRequestError(message, "session.instructions")
        self._settings = changed
        await self.send({"type": "session.updated", "session": self._shown()})

    async def _add(self, event: ClientEvent) -> None:
        await self._keep(message_item(event.item))

    async def _keep(self, item: dict[str, Any]) -> None:
        before = self._conversation.add(item)
        for kind in ("conversation.item.added", "conversation.item.done"):
            await self.send({"type": kind, "previous_item_id": before, "item": item})

    async def _delete(self, event: ClientEvent) -> None:
        self._conversation.delete(event.item_id)
        await self.send({"type": "conversation.item.deleted", "item_id": event.item_id})

    async def _respond(self, event: ClientEvent) -> None:
        if self.is_writing:
            raise InvalidRequestError(
                "a response is being written; cancel it, or wait for response.done",
                "response",
                "conversation_already_has_active_response",
            )
        settings = self._settings.changed(event.response or Settings())
        response = RealtimeResponse(self._socket, self._state, settings, self.send)
        await response.prepare(self._messages(settings), self._conversation.size)
        self._response = response
        self._task = asyncio.ensure_future(self._write(response, event.event_id))

    async def _write(self, response: RealtimeResponse, event_id: str | None) -> None:
        try:
            item = await response.write()
            if item["content"]:
                await self._keep(item)
            await response.end()
        except OSError:
            logger.info("a client of /v1/realtime left, or read nothing for too long")
        except Exception as error:
            await self.tell(error, event_id)
            await response.fail()

    async def _cancel(self, event: ClientEvent) -> None:
        await self._running(event).cancel()

    async def _append(self, event: ClientEvent) -> None:
        if (event.text is None) == (event.token_ids is None):
            raise InvalidRequestError("give text or token_ids", "text")
        piece = event.token_ids if event.text is None else event.text
        self._running(event).append(piece)

    def _running(self, event: ClientEvent) -> RealtimeResponse:
        response = self._response
        known = response is not None and event.response_id in (None, response.id)
        if response is None or not known or not self.is_writing:
            raise InvalidRequestError("no such response is being written", "response_id", "response_not_active")
        return response

    def _messages(self, settings: Settings) -> list[dict[str, Any]]:
        told = settings.instructions
        first = [{"role": "system", "content": told}] if isinstance(told, str) and told else []
        return [*first, *({"role": item["role"], "content": text_of_item(item)} for item in self._conversation.items)]

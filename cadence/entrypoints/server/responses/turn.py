"""One response on its way: what it goes on from, what the model is told, what it says, and what is kept of it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.events import ChatEvent, ChatJob, ChoiceEnd
from cadence.entrypoints.server.chat.failures import check_event
from cadence.entrypoints.server.http.errors import ApiError, not_found, reply_for
from cadence.entrypoints.server.http.stream import StartedStream, encode_json
from cadence.entrypoints.server.protocol.response_items import ids_of, referenced
from cadence.entrypoints.server.protocol.responses import ResponsesBody
from cadence.entrypoints.server.protocol.responses_answer import ResponseAnswer, StreamEvent
from cadence.entrypoints.server.responses.event_log import EventWriter
from cadence.entrypoints.server.responses.store import RunningResponse, StoredResponse, TenantResponses

logger = logging.getLogger("cadence.server")

Items = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class PriorContext:
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
        if self.running.cancelled and type(event) is ChoiceEnd and event.finish_reason == "abort":
            return
        check_event(event)

    async def write(
        self, store: TenantResponses, events: AsyncGenerator[ChatEvent, None] | StartedStream[ChatEvent]
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


def prior_context(body: ResponsesBody, store: TenantResponses) -> PriorContext:
    """On the event loop, which the store belongs to."""
    conversations = {}
    for item_id, where in referenced(body.items()).items():
        stored = store.holding(item_id)
        if stored is None:
            raise not_found(f"Item with id '{item_id[:100]}' not found: only stored responses keep their items.", where)
        conversations[item_id] = stored.items
    return PriorContext(_previous(body.previous_response_id, store), conversations)


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

"""One response on its way: what it goes on from, what the model reads, what it writes, and what is kept of it."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cadence.core.contract.response_messages import ResponseState, StoredResponse, StoreReply, StoreVerb
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.chat.events import ChatEvent, ChatJob, ChoiceEnd
from cadence.entrypoints.server.chat.failures import check_event
from cadence.entrypoints.server.http.errors import ApiError, not_found, reply_for
from cadence.entrypoints.server.http.stream import StartedStream, encode_json
from cadence.entrypoints.server.protocol.responses.response_items import ids_of, referenced
from cadence.entrypoints.server.protocol.responses.responses import ResponsesBody
from cadence.entrypoints.server.protocol.responses.responses_answer import ResponseAnswer, StreamEvent
from cadence.entrypoints.server.responses.client import LocalRun, TenantClient
from cadence.entrypoints.server.responses.event_writer import EventWriter

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


class TokenRecord:
    """The tokens of a response, for another process to go on from."""

    def __init__(self, known: int) -> None:
        """known: tokens that were recorded before, and come again"""
        self._known = known
        self._new: list[int] = []

    def add(self, token_ids: Sequence[int]) -> None:
        self._new += token_ids[self._known :]
        self._known = max(0, self._known - len(token_ids))

    def take(self) -> list[int]:
        new, self._new = self._new, []
        return new


@dataclass(frozen=True, slots=True)
class Turn:
    job: ChatJob
    answer: ResponseAnswer
    items: Items  # all that the model reads
    kept: bool
    run: LocalRun
    writer: EventWriter
    tokens: TokenRecord
    start: Mapping[str, Any]  # what the store gets of it at its beginning, beside its body

    def shortened(self, job: ChatJob, dropped: int) -> Turn:
        self.answer.dropped_items = dropped
        return dataclasses.replace(self, job=job)

    def check(self, event: ChatEvent) -> None:
        """A choice that ended badly raises, unless the client wanted it to end."""
        if self.run.cancelled and type(event) is ChoiceEnd and event.finish_reason == "abort":
            return
        check_event(event)

    async def begin(self, store: TenantClient) -> StoreReply:
        """It runs here, and may be asked for."""
        store.runs[self.answer.id] = self.run
        return await store.ask(StoreVerb.BEGIN, self.answer.id, body=self._body(), **self.start)

    async def write(
        self, store: TenantClient, events: AsyncGenerator[ChatEvent, None] | StartedStream[ChatEvent]
    ) -> AsyncGenerator[bytes, None]:
        """The events of a response that has begun. However it ends, it is known until then and kept afterwards."""
        answer = self.answer
        try:
            async with aclosing(events):
                yield self._logged_event(answer.begin(), store)
                async for event in events:
                    if found := answer.read(event):
                        yield self._logged_event(found, store)
            yield await self._end(answer.finish(), store)
        except Exception as error:
            reply = reply_for(error)
            if reply.is_bug:
                logger.error("a response broke", exc_info=error)
            yield await self._end(answer.fail(reply), store)
        finally:
            if answer.is_open:  # the client left
                store.send(StoreVerb.END, answer.id, **self._last(self.writer.write(answer.finish())))
            store.runs.pop(answer.id, None)

    async def in_foreground(
        self, store: TenantClient, events: AsyncGenerator[ChatEvent, None] | StartedStream[ChatEvent]
    ) -> AsyncGenerator[bytes, None]:
        await self.begin(store)
        async with aclosing(self.write(store, events)) as chunks:
            async for chunk in chunks:
                yield chunk

    async def keep(self, store: TenantClient) -> None:
        """Stores one that is over and was not streamed while it ran."""
        if self.kept:
            await store.ask(StoreVerb.END, self.answer.id, **self._last([]))

    def _logged_event(self, events: list[StreamEvent], store: TenantClient) -> bytes:
        """What a response says of itself changes with all events but deltas of texts."""
        written = self.writer.write(events)
        is_changed = any(not event["type"].endswith(".delta") for event in events)
        if is_changed or self.start["is_background"]:
            fields = {"body": self._body() if is_changed else b"", "token_ids": self.tokens.take()}
            store.send(StoreVerb.ADD, self.answer.id, events=self._logged(written), **fields)
        return b"".join(written)

    async def _end(self, last: list[StreamEvent], store: TenantClient) -> bytes:
        written = self.writer.write(last)
        await store.ask(StoreVerb.END, self.answer.id, **self._last(written))
        return b"".join(written)

    def _last(self, written: list[bytes]) -> dict[str, Any]:
        body = self._body()
        if not self.kept:
            return {"body": body}
        items = [*self.items, *self.answer.history()]
        stored = StoredResponse(body, encode_json(items), len(self.items), tuple(ids_of(items)))
        return {"body": body, "events": self._logged(written), "stored": stored}

    def _logged(self, written: list[bytes]) -> list[bytes]:
        return written if self.start["keeps_events"] else []

    def _body(self) -> bytes:
        return encode_json(self.answer.snapshot())


async def prior_context(body: ResponsesBody, store: TenantClient) -> PriorContext:
    conversations = {}
    for item_id, where in referenced(body.items()).items():
        stored = await store.holding(item_id)
        if stored is None:
            raise not_found(f"Item with id '{item_id[:100]}' not found: only stored responses keep their items.", where)
        conversations[item_id] = stored.items
    return PriorContext(await _previous(body.previous_response_id, store), conversations)


async def _previous(response_id: str | None, store: TenantClient) -> bytes:
    """The conversation up to and with an earlier response."""
    if not response_id:
        return b"[]"
    field = "previous_response_id"
    reply = await store.ask(StoreVerb.GET, response_id)
    if reply.state is ResponseState.RUNNING:
        raise InvalidRequestError(f"{field} names a response that is still in progress", field)
    if reply.stored is None or not reply.stored.items:
        message = f"Previous response with id '{response_id}' not found."
        raise ApiError(400, message, param=field, code="previous_response_not_found")
    return reply.stored.items

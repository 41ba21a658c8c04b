"""Keeps responses for all processes that answer requests for them: what those that run have said so far, and those that
are over.

A response in the background whose process is gone is handed to another one, together with what it has said and the
tokens that this came of. One in the foreground ends with its process and its connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec

from cadence.core.contract.response_messages import (
    UNKNOWN_RESPONSE,
    ResponseJob,
    ResponseState,
    ResumedResponse,
    StoreCall,
    StoredResponse,
    StoreReply,
    StoreVerb,
)
from cadence.entrypoints.server.http.stream import encode_json
from cadence.entrypoints.server.responses.event_log import EventLog, NullLog, events_from
from cadence.entrypoints.server.responses.event_writer import event_bytes
from cadence.entrypoints.server.responses.store import MAX_AGE_S, ResponseStore, TenantResponses

logger = logging.getLogger("cadence.server")

MAX_BACKGROUND = 256  # responses of one tenant that run in the background at once
MAX_DEATHS = 3  # of processes that ran a response, one after another and none further, before it fails
CANCEL_S = 5.0  # to wait for a cancelled response to be over
NO_FRONT = 0  # instead of a front's number


class Runners(Protocol):
    """The fronts, by their numbers."""

    def cancel(self, front: int, response_id: str) -> None: ...

    def resume(self, resumed: ResumedResponse) -> int:
        """-> the front that goes on with it; NO_FRONT where none serves"""
        ...


@dataclass(slots=True)
class RunningResponse:
    tenant: str
    front: int  # that runs it
    body: bytes  # the response so far, as JSON
    log: EventLog
    job: ResponseJob | None
    is_background: bool
    token_ids: list[int] = field(default_factory=list)
    begun_at: float = field(default_factory=time.monotonic)  # seconds
    reached: int = 0  # tokens, of all fronts
    deaths: int = 0  # of fronts that ran it and got no further
    is_cancelled: bool = False
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def lose_front(self) -> None:
        """The last token is computed again: it may be the one that ends the response, which an engine that is given it
        would go on from."""
        self.deaths += 1
        self.front = NO_FRONT
        self.token_ids = self.token_ids[:-1]

    def handed_over(self, job: ResponseJob) -> ResumedResponse:
        left_s = self.begun_at + MAX_AGE_S - time.monotonic()
        return ResumedResponse(self.tenant, job, self.log.events, self.token_ids, left_s, self.is_cancelled)


class ResponseManager:
    def __init__(self, runners: Runners) -> None:
        self._runners = runners
        self._store = ResponseStore()
        self._running: dict[tuple[str, str], RunningResponse] = {}  # by tenant and id
        self._sync: dict[StoreVerb, Callable[[int, StoreCall], StoreReply]] = {
            StoreVerb.BEGIN: self._begin,
            StoreVerb.ADD: self._add,
            StoreVerb.END: self._end,
            StoreVerb.FAIL: self._fail,
            StoreVerb.GET: self._get,
            StoreVerb.FIND_ITEM: self._find_item,
            StoreVerb.DROP: self._drop,
        }

    def take(self, front: int, call: StoreCall) -> StoreReply:
        """Of a verb that needs no waiting."""
        return self._sync[call.verb](front, call)

    async def answer(self, front: int, call: StoreCall) -> StoreReply:
        if call.verb is StoreVerb.READ:
            return await self._read(call)
        if call.verb is StoreVerb.CANCEL:
            return await self._cancel(call)
        return self.take(front, call)

    def gone(self, front: int) -> None:
        """All that it has sent was taken in."""
        for (tenant, response_id), running in list(self._running.items()):
            if running.front != front:
                continue
            running.lose_front()
            if running.job is None:
                self._close(tenant, response_id)
            elif running.deaths == MAX_DEATHS:
                reason = f"{MAX_DEATHS} API processes ended one after another while they made this response"
                self.take(NO_FRONT, StoreCall(StoreVerb.FAIL, tenant, response_id, reason=reason))
        self.hand_over()

    def hand_over(self) -> None:
        """Responses that no front runs go to a front that serves, if there is one."""
        for running in self._running.values():
            if running.front == NO_FRONT and running.job is not None:
                running.front = self._runners.resume(running.handed_over(running.job))

    def _of(self, call: StoreCall) -> TenantResponses:
        return self._store.of(call.tenant)

    def _begin(self, front: int, call: StoreCall) -> StoreReply:
        same = [one for one in self._running.values() if one.is_background and one.tenant == call.tenant]
        if call.is_background and len(same) >= MAX_BACKGROUND:
            return StoreReply(ResponseState.TOO_MANY)
        log = EventLog() if call.keeps_events else NullLog()
        running = RunningResponse(call.tenant, front, call.body, log, call.job, call.is_background)
        self._running[call.tenant, call.response_id] = running
        return StoreReply(ResponseState.RUNNING)

    def _add(self, front: int, call: StoreCall) -> StoreReply:
        running = self._running.get((call.tenant, call.response_id))
        if running is None or running.front != front:
            return UNKNOWN_RESPONSE
        running.body = call.body or running.body
        running.token_ids += call.token_ids
        if len(running.token_ids) > running.reached:
            running.reached, running.deaths = len(running.token_ids), 0
        running.log.add(call.events)
        return StoreReply(ResponseState.RUNNING)

    def _end(self, front: int, call: StoreCall) -> StoreReply:
        self._add(front, call)
        running = self._close(call.tenant, call.response_id)
        if call.stored is None:
            return UNKNOWN_RESPONSE
        events = tuple(running.log.events) if running is not None else ()
        self._of(call).keep(call.response_id, dataclasses.replace(call.stored, events=events))
        return StoreReply(ResponseState.STORED)

    def _fail(self, front: int, call: StoreCall) -> StoreReply:
        """The end of one that no process writes."""
        running = self._running.get((call.tenant, call.response_id))
        if running is None:
            return UNKNOWN_RESPONSE
        logger.error("the response %s failed: %s", call.response_id, call.reason)
        error = {"code": "server_error", "message": f"{call.reason}."}
        body = {**msgspec.json.decode(running.body), "status": "failed", "error": error}
        events = [{"type": "error", **error, "param": None}, {"type": "response.failed", "response": body}]
        first = len(running.log.events)
        running.log.add([event_bytes(event, number) for number, event in enumerate(events, first)])
        stored = StoredResponse(encode_json(body), b"")
        return self._end(front, StoreCall(StoreVerb.END, call.tenant, call.response_id, stored=stored))

    def _get(self, front: int, call: StoreCall) -> StoreReply:
        running = self._running.get((call.tenant, call.response_id))
        if running is not None:
            has_events = running.log.keeps
            return StoreReply(ResponseState.RUNNING, running.body, has_events=has_events, is_lost=running.log.is_lost)
        return _stored(self._of(call).get(call.response_id))

    def _find_item(self, front: int, call: StoreCall) -> StoreReply:
        return _stored(self._of(call).holding(call.response_id))

    def _drop(self, front: int, call: StoreCall) -> StoreReply:
        """Of one that runs, nothing: the reply says so."""
        if (call.tenant, call.response_id) in self._running:
            return StoreReply(ResponseState.RUNNING)
        return StoreReply(ResponseState.STORED) if self._of(call).drop(call.response_id) else UNKNOWN_RESPONSE

    async def _read(self, call: StoreCall) -> StoreReply:
        running = self._running.get((call.tenant, call.response_id))
        if running is not None:
            await running.log.until_there(call.start)
            events, is_lost, is_over = running.log.events, running.log.is_lost, running.log.is_closed
        else:
            stored = self._of(call).get(call.response_id)
            if stored is None:
                return UNKNOWN_RESPONSE
            events, is_lost, is_over = list(stored.events), False, True
        found = events_from(events, call.start)
        is_over = is_over and call.start + len(found) >= len(events)
        return StoreReply(ResponseState.RUNNING, events=found, is_lost=is_lost, is_over=is_over)

    async def _cancel(self, call: StoreCall) -> StoreReply:
        """In the background, it is over with the reply, or soon after."""
        running = self._running.get((call.tenant, call.response_id))
        if running is None:
            return self._get(NO_FRONT, call)
        running.is_cancelled = True
        if running.front != NO_FRONT:
            self._runners.cancel(running.front, call.response_id)
        if running.is_background:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(running.over.wait(), CANCEL_S)
        return StoreReply(ResponseState.RUNNING, running.body)

    def _close(self, tenant: str, response_id: str) -> RunningResponse | None:
        running = self._running.pop((tenant, response_id), None)
        if running is not None:
            running.log.close()
            running.over.set()
        return running


def _stored(stored: StoredResponse | None) -> StoreReply:
    if stored is None:
        return UNKNOWN_RESPONSE
    return StoreReply(
        ResponseState.STORED, stored=dataclasses.replace(stored, events=()), has_events=bool(stored.events)
    )

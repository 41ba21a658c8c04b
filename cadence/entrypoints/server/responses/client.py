"""Responses as a process that serves sees them: the store, here or in another process, and those that run here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cadence.core.contract.response_messages import (
    ResponseState,
    ResumedResponse,
    StoreCall,
    StoredResponse,
    StoreReply,
    StoreVerb,
)
from cadence.entrypoints.server.http.errors import ApiError, not_found
from cadence.entrypoints.server.responses.manager import NO_FRONT, ResponseManager

THIS_FRONT = 1  # the only one


class StoreLink(Protocol):
    async def ask(self, call: StoreCall) -> StoreReply: ...

    def send(self, call: StoreCall) -> None:
        """In the order of all calls; there is no reply."""
        ...


class OwnStore:
    """A store in this process, which is the only one."""

    def __init__(self, cancel: Callable[[str], None]) -> None:
        self._cancel = cancel
        self._manager = ResponseManager(self)

    async def ask(self, call: StoreCall) -> StoreReply:
        return await self._manager.answer(THIS_FRONT, call)

    def send(self, call: StoreCall) -> None:
        self._manager.take(THIS_FRONT, call)

    def cancel(self, front: int, response_id: str) -> None:
        self._cancel(response_id)

    def resume(self, resumed: ResumedResponse) -> int:
        return NO_FRONT


@dataclass(slots=True)
class LocalRun:
    """A response that runs in this process."""

    request_id: str  # the engine's
    task: asyncio.Task[None] | None = None  # of one in the background
    cancelled: bool = False

    def end(self) -> None:
        """After the task's first step, so that it writes its end."""
        if self.task is not None:
            asyncio.get_running_loop().call_soon(self.task.cancel)


class ResponseClient:
    def __init__(
        self, open_link: Callable[[Callable[[str], None]], StoreLink], abort: Callable[[str], Awaitable[None]]
    ) -> None:
        """open_link: is given what ends a response that runs here. abort: ends a request in the engine"""
        self.runs: dict[str, LocalRun] = {}  # by id
        self._abort = abort
        self._link = open_link(self.cancel)
        self._tasks: set[asyncio.Future[None]] = set()

    def of(self, tenant: str) -> TenantClient:
        return TenantClient(tenant, self._link, self.runs)

    def cancel(self, response_id: str) -> None:
        run = self.runs.get(response_id)
        if run is None:
            return
        run.cancelled = True
        if run.task is not None:
            run.end()
            return
        task = asyncio.ensure_future(self._abort(run.request_id))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class TenantClient:
    """The responses of one tenant."""

    def __init__(self, tenant: str, link: StoreLink, runs: dict[str, LocalRun]) -> None:
        self.tenant = tenant
        self.runs = runs
        self._link = link

    def send(self, verb: StoreVerb, response_id: str, **fields: Any) -> None:
        self._link.send(StoreCall(verb, self.tenant, response_id, **fields))

    async def ask(self, verb: StoreVerb, response_id: str, **fields: Any) -> StoreReply:
        return await self._link.ask(StoreCall(verb, self.tenant, response_id, **fields))

    async def get(self, response_id: str) -> StoreReply:
        """Raises 404."""
        return _known(response_id, await self.ask(StoreVerb.GET, response_id))

    async def cancel(self, response_id: str) -> StoreReply:
        return _known(response_id, await self.ask(StoreVerb.CANCEL, response_id))

    async def drop(self, response_id: str) -> StoreReply:
        return _known(response_id, await self.ask(StoreVerb.DROP, response_id))

    async def stored(self, response_id: str) -> StoredResponse | None:
        """None also for one that runs."""
        return (await self.ask(StoreVerb.GET, response_id)).stored

    async def holding(self, item_id: str) -> StoredResponse | None:
        """A response whose conversation has this item."""
        return (await self.ask(StoreVerb.FIND_ITEM, item_id)).stored

    async def is_running(self, response_id: str) -> bool:
        return (await self.ask(StoreVerb.GET, response_id)).state is ResponseState.RUNNING

    async def events(self, response_id: str, start: int) -> AsyncGenerator[bytes, None]:
        """From the event with this number on, until there will be no more."""
        is_over = False
        while not is_over:
            reply = _known(response_id, await self.ask(StoreVerb.READ, response_id, start=start))
            check_events(reply.is_lost, has_events=True)
            start += len(reply.events)
            is_over = reply.is_over
            if reply.events:
                yield b"".join(reply.events)


def check_events(is_lost: bool, has_events: bool) -> None:
    if is_lost:
        raise ApiError(400, "The response's events are not kept: there are too many.", code="events_not_kept")
    if not has_events:
        message = "Only the events of responses made with background and stream can be read again."
        raise ApiError(400, message, param="stream", code="events_not_kept")


def _known(response_id: str, reply: StoreReply) -> StoreReply:
    if reply.state is ResponseState.UNKNOWN:
        raise not_found(f"Response with id '{response_id[:100]}' not found.", "response_id")
    return reply

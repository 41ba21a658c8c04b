"""Keeps an engine alive. It remembers every request and its tokens so far: when the engine dies, a new one is
started and goes on where the dead one was."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from cadence.core.engine_state import EngineState
from cadence.core.errors import EngineDeadError
from cadence.core.messages import FromEngine, Introduction, ToEngine
from cadence.core.request import EngineRequest
from cadence.core.update import RequestUpdate
from cadence.engine.async_client import EngineProcess

logger = logging.getLogger("cadence.engine")

MAX_DEATHS = 3  # within DEATH_WINDOW_S and without a token in between: the engine is given up
DEATH_WINDOW_S = 60.0
FIRST_BACKOFF_S = 0.1


@dataclass(slots=True)
class Entry:
    """A request under way: what it was, and what has become of it."""

    request: EngineRequest
    token_ids: list[int] = field(default_factory=list)

    def resumed(self) -> EngineRequest:
        return replace(self.request, output_token_ids=tuple(self.token_ids))


class Supervisor:
    """Made inside a running event loop. `updates` is the heart: whoever iterates over it keeps the engine going."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options  # EngineArgs, as JSON knows it
        self._engine: EngineProcess | None = None  # None while there is none
        self._journal: dict[str, Entry] = {}
        self._deaths: deque[float] = deque(maxlen=MAX_DEATHS)
        self._calls: dict[int, asyncio.Future[FromEngine]] = {}
        self._num_calls = 0
        self._stopping = False
        self._is_ready = False
        self.introduction: asyncio.Future[Introduction] = asyncio.get_running_loop().create_future()
        self.num_restarts = 0
        self.last_progress = time.monotonic()

    @property
    def is_ready(self) -> bool:
        return self._is_ready

    @property
    def pid(self) -> int:
        return self._engine.pid if self._engine is not None else 0

    async def submit(self, request: EngineRequest) -> None:
        if not self._journal:
            self.last_progress = time.monotonic()  # it was idle: that was no lack of progress
        self._journal[request.request_id] = Entry(request)
        await self._send(ToEngine(add=[request]))

    async def drop(self, request_ids: Iterable[str]) -> None:
        """The front has ended these itself: whatever the engine still says of them is not passed on."""
        ids = [request_id for request_id in request_ids if self._journal.pop(request_id, None) is not None]
        if ids:
            await self._send(ToEngine(abort=ids))

    async def state(self, with_blocks: bool) -> EngineState:
        answer = await self._call("state" if with_blocks else "stats")
        return answer.state or EngineState()

    async def reset_prefix_cache(self) -> bool:
        return (await self._call("reset_prefix_cache")).done

    async def updates(self) -> AsyncIterator[list[RequestUpdate]]:
        """Everything all engines report, one after the other. Ends when stopped; raises when the engine is given up."""
        while not self._stopping:
            self._engine = await EngineProcess.start(self._options)
            try:
                async for news in self._engine.news():
                    updates = await self._take(news)
                    if updates:
                        yield updates
            except EngineDeadError as death:
                self._is_ready = False
                self._engine.close()
                self._engine = None
                if not self._stopping:
                    await self._mourn(death)

    async def stop(self) -> None:
        self._stopping = True
        if self._engine is not None:
            await self._engine.stop()

    def open_requests(self) -> list[str]:
        return list(self._journal)

    async def _take(self, news: FromEngine) -> list[RequestUpdate]:
        if news.fatal:
            raise EngineDeadError(news.fatal)
        if news.introduction is not None:
            self._is_ready = True
            if not self.introduction.done():
                self.introduction.set_result(news.introduction)
            await self._resubmit()
        if news.call_id:
            future = self._calls.pop(news.call_id, None)
            if future is not None and not future.done():
                future.set_result(news)
        self.last_progress = time.monotonic()
        if news.updates:
            self._deaths.clear()
        return [update for update in news.updates if self._note(update)]

    def _note(self, update: RequestUpdate) -> bool:
        """Writes an update into the journal; False when its request is over for the front."""
        entry = self._journal.get(update.request_id)
        if entry is None:
            return False
        entry.token_ids.extend(update.new_token_ids)
        if update.finish_reason is not None:
            del self._journal[update.request_id]
        return True

    async def _resubmit(self) -> None:
        if self._journal:
            await self._send(ToEngine(add=[entry.resumed() for entry in self._journal.values()]))

    async def _mourn(self, death: EngineDeadError) -> None:
        """Waits a little before the next start; gives up when the last ones brought nothing."""
        for future in self._calls.values():
            future.cancel()
        self._calls.clear()
        now = time.monotonic()
        self._deaths.append(now)
        if not self.introduction.done():
            raise death  # the first one never lived: the options are at fault
        if len(self._deaths) == MAX_DEATHS and now - self._deaths[0] < DEATH_WINDOW_S:
            raise EngineDeadError(f"the engine died {MAX_DEATHS} times in a row, the last time: {death}")
        self.num_restarts += 1
        logger.warning("%s; starting another, %d requests go on", death, len(self._journal))
        await asyncio.sleep(FIRST_BACKOFF_S * 2 ** (len(self._deaths) - 1))

    async def _send(self, orders: ToEngine) -> None:
        """Without an engine nothing is lost: the journal holds what the next one must do."""
        if self._is_ready and self._engine is not None:
            await self._engine.send(orders)

    async def _call(self, name: str) -> FromEngine:
        if not self.is_ready:
            raise EngineDeadError("the engine is starting")
        self._num_calls += 1
        future: asyncio.Future[FromEngine] = asyncio.get_running_loop().create_future()
        self._calls[self._num_calls] = future
        await self._send(ToEngine(call=name, call_id=self._num_calls))
        return await future

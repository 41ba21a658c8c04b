"""An engine put to sleep and woken by its front, whatever becomes of its process meanwhile."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

from cadence.core.contract.control import SLEEP, SLEEPING_PARTS, WAKE_UP, A, P, Verb
from cadence.core.contract.sleep import SLEEP_TAGS, only_held
from cadence.core.errors import EngineDeadError, InvalidRequestError
from cadence.engine.supervise.engine_client import EngineCalls

_LOOK_S = 0.05  # between two looks at whether the next engine is ready


class Sleep:
    """What the front asked for; an engine that is started again is told."""

    def __init__(self, engines: EngineCalls) -> None:
        self._engines = engines
        self._is_over = False  # there will be no engine any more
        self.is_on = False  # asked for, and not all of it is over

    async def begin(self, level: int) -> None:
        """Returns when the memory is given back. First all engines come to rest: one that computes together with
        others needs them until then."""
        self.is_on = True
        self._engines.keep(SLEEP, level)
        try:
            await self._until_done(SLEEP, 0)
            if level:
                await self._until_done(SLEEP, level)
        except InvalidRequestError:  # some engine could not
            await self.end(SLEEP_TAGS)
            raise

    async def end(self, tags: Sequence[str]) -> None:
        """All engines have their memory before one of them computes."""
        for tag in tags:
            self._engines.keep(WAKE_UP, tag)
            await self._until_done(WAKE_UP, tag)
        parts = await self._until_done(SLEEPING_PARTS, None)
        if only_held(parts):
            self._engines.keep(WAKE_UP, "")
            await self._until_done(WAKE_UP, "")
            self.is_on = False

    async def while_at_rest(self, verb: Verb[P, A], payload: P) -> A:
        """What changes all engines: none computes together with one that was changed, or was not."""
        parts = await self._until_done(SLEEPING_PARTS, None)
        rests = bool(parts)
        if not rests:
            await self._until_done(SLEEP, 0)
        try:
            return await self._engines.call(verb, payload)
        finally:
            if not rests:
                self._engines.keep(WAKE_UP, "")
                await self._until_done(WAKE_UP, "")

    async def asks(self) -> bool:
        parts = await self._until_done(SLEEPING_PARTS, None)
        return bool(parts)

    def give_up(self) -> None:
        self._is_over = True

    async def _until_done(self, verb: Verb[P, A], payload: P) -> A:
        """By the engine, or by the next one should it die of it or by the way."""
        ends = time.monotonic() + verb.deadline_s
        while True:
            try:
                return await self._engines.call(verb, payload)
            except EngineDeadError:
                if self._is_over or time.monotonic() > ends:
                    raise
            await asyncio.sleep(_LOOK_S)
            while not self._engines.is_ready and not self._is_over:
                await asyncio.sleep(_LOOK_S)

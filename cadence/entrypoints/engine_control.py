"""What concerns engines and all the fronts that they have: pauses, sleep, other weights."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Protocol

from cadence.core.contract.control import PAUSE, RESET_PREFIX_CACHE, UPDATE_WEIGHTS
from cadence.core.contract.hold import KEEP, NO_HOLD, Hold, PauseCall, SleepCall
from cadence.core.errors import EngineDeadError
from cadence.engine.supervise.engine_client import EngineCalls
from cadence.engine.supervise.sleep import Sleep
from cadence.entrypoints.front_hold import FrontHold
from cadence.entrypoints.weights_files import NewWeights, WeightsFiles


class HeldFronts(Protocol):
    async def hold(self, hold: Hold) -> None:
        """Returns when all have it."""
        ...

    async def quiet(self, hold: Hold) -> None:
        """Returns when what had to end by it has ended in all of them."""
        ...


class Control(Protocol):
    """By the process that owns the engines."""

    async def pause(self, call: PauseCall) -> None: ...

    async def resume(self) -> None: ...

    async def sleep(self, call: SleepCall) -> None: ...

    async def wake_up(self, tags: Sequence[str]) -> None: ...

    async def any_sleeps(self) -> bool: ...

    async def set_weights(self, weights: NewWeights | None) -> None: ...

    def give_up(self) -> None:
        """There will be no engine any more."""
        ...

    def close(self) -> None: ...


ControlFactory = Callable[[EngineCalls, FrontHold], Control]  # of a front


class EngineControl:
    def __init__(self, engines: EngineCalls, fronts: HeldFronts) -> None:
        self._engines = engines
        self._fronts = fronts
        self._sleep = Sleep(engines)
        self._weights, self._updating = WeightsFiles(), asyncio.Lock()
        self.current = NO_HOLD  # as all fronts were told

    async def pause(self, call: PauseCall) -> None:
        keeps = call.mode == KEEP
        hold = await self._tell(is_paused=True, is_kept=keeps or self.current.is_kept, running=call.mode)
        if keeps:
            await self._pause_engines(True)
        await self._fronts.quiet(hold)
        if call.clear_cache and self.current.is_paused:
            await self._engines.call(RESET_PREFIX_CACHE, True)  # of aborted requests, as a rule

    async def resume(self) -> None:
        if self.current.is_kept:
            await self._pause_engines(False)
        await self._tell(is_paused=False, is_kept=False)

    async def sleep(self, call: SleepCall) -> None:
        """A restarted engine sleeps as this one did."""
        if call.mode != KEEP:
            await self._fronts.quiet(await self._tell(running=call.mode))
        await self._tell(is_asleep=True)
        try:
            await self._sleep.begin(call.level)
        finally:
            await self._tell(is_asleep=self._sleep.is_on)

    async def wake_up(self, tags: Sequence[str]) -> None:
        await self._sleep.end(tags)
        await self._tell(is_asleep=self._sleep.is_on)

    async def any_sleeps(self) -> bool:
        return await self._sleep.asks()

    async def set_weights(self, weights: NewWeights | None) -> None:
        """None: those that there are, read again. A restarted engine has them, too."""
        async with self._updating:
            state = await asyncio.to_thread(self._weights.prepared, weights)
            done = None
            try:
                await self._sleep.while_at_rest(UPDATE_WEIGHTS, state)
                done = state
            finally:
                self._weights.settle(done)

    def give_up(self) -> None:
        self._sleep.give_up()

    def close(self) -> None:
        self._weights.close()

    async def _tell(self, running: str = KEEP, **changes: Any) -> Hold:
        """-> what all fronts have been told"""
        hold = replace(self.current, running=running, **changes)
        if hold == self.current and running == KEEP:
            return hold
        self.current = hold = replace(hold, version=hold.version + 1)
        await self._fronts.hold(hold)
        return hold

    async def _pause_engines(self, paused: bool) -> None:
        """One that is down is told when it is back."""
        self._engines.keep(PAUSE, paused)
        with contextlib.suppress(EngineDeadError):
            await self._engines.call(PAUSE, paused)

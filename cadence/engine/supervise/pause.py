"""Whether requests may begin, and whether those that run go on."""

from __future__ import annotations

import asyncio
import contextlib
import time

from cadence.core.contract.control import PAUSE
from cadence.core.errors import EngineDeadError
from cadence.engine.supervise.engine_client import EngineClient


class Pause:
    def __init__(self, engines: EngineClient) -> None:
        self._engines = engines
        self._over = asyncio.Event()  # new requests wait for it
        self._over.set()
        self.is_kept = False  # engines compute nothing: requests that run wait ...
        self.resumed = 0.0  # ... until then; by time.monotonic

    @property
    def is_on(self) -> bool:
        return not self._over.is_set()

    async def wait_over(self) -> None:
        await self._over.wait()

    def begin(self) -> None:
        """New requests wait."""
        self._over.clear()

    async def keep(self) -> None:
        """Requests that run wait, too: engines begin no step."""
        self.is_kept = True
        await self._pause_engines(True)

    async def resume(self) -> None:
        if self.is_kept:
            await self._pause_engines(False)
            self.is_kept, self.resumed = False, time.monotonic()
        self._over.set()

    def give_up(self) -> None:
        """Requests that wait learn that there is no engine."""
        self._over.set()

    async def _pause_engines(self, paused: bool) -> None:
        """One that is down is told when it is back."""
        self._engines.keep(PAUSE, paused)
        with contextlib.suppress(EngineDeadError):
            await self._engines.call(PAUSE, paused)

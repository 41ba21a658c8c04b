"""Kills the engine now and then, and measures how long the server needs until it is healthy again."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time

from tests.hostile.processes import engine_pid
from tests.hostile.wire import Connection, Request

_POLL_S = 0.05
_RECOVERY_S = 120.0


class Killer:
    def __init__(self, url: str, pid: int, per_minute: float, seed: int) -> None:
        self._url, self._pid, self._rng = url, pid, random.Random(seed)
        self._period = 60.0 / per_minute if per_minute else 0.0  # seconds
        self.recoveries: list[float] = []  # seconds from each kill to a healthy server
        self.moments: list[float] = []  # monotonic seconds of each kill

    async def run(self, over: asyncio.Event) -> None:
        moment = time.monotonic()
        while self._period:
            moment += self._period * self._rng.uniform(0.5, 1.5)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, moment - time.monotonic())):
                    await over.wait()
                return
            if engine := engine_pid(self._pid):
                os.kill(engine, signal.SIGKILL)
                self.moments.append(time.monotonic())
                self.recoveries.append(await self._recovery(engine))

    async def _recovery(self, dead: int) -> float:
        began, connection = time.monotonic(), Connection(self._url)
        while time.monotonic() - began < _RECOVERY_S:
            answer = await connection.ask(Request("GET", "/health", ()), 10.0)
            if answer.status == 200 and engine_pid(self._pid) not in (0, dead):
                break
            await asyncio.sleep(_POLL_S)
        connection.drop()
        return time.monotonic() - began

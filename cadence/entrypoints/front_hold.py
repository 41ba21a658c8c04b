"""Whether requests of a front may begin, and whether engines compute those that run."""

from __future__ import annotations

import asyncio
import time

from cadence.core.contract.hold import ABORT, KEEP, NO_HOLD, Hold
from cadence.entrypoints.open_requests import OpenRequests
from cadence.process.together import first_of


class FrontHold:
    """What this front was told last. Implements `HeldFronts` for one that is alone."""

    def __init__(self, requests: OpenRequests) -> None:
        self._requests = requests
        self._over = asyncio.Event()  # new requests wait for it
        self._over.set()
        self.now = NO_HOLD
        self.went_on = 0.0  # when engines last began to compute again, by time.monotonic

    def take(self, hold: Hold) -> None:
        if self.now.is_still and not hold.is_still:
            self.went_on = time.monotonic()
        self.now = hold
        if hold.is_paused:
            self._over.clear()
        else:
            self._over.set()
        if hold.running == ABORT:
            for request_id in self._requests.ids():
                self._requests.abort(request_id)

    async def wait_over(self) -> None:
        await self._over.wait()

    async def hold(self, hold: Hold) -> None:
        self.take(hold)

    async def quiet(self, hold: Hold) -> None:
        """Also when the pause that asks for it is over."""
        if hold.running == KEEP:
            return
        if hold.is_paused:
            await first_of(self._requests.wait_idle(), self.wait_over())
        else:
            await self._requests.wait_idle()

    def give_up(self) -> None:
        """Requests that wait learn that there is no engine."""
        self._over.set()

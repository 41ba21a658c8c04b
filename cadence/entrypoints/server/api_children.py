"""The API processes of a server, and what all of them have to know."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable

from cadence.core.contract.front_messages import ToFront
from cadence.entrypoints.server.api_child import ApiChild

TAKEN_S = 5.0  # for processes to take in what they are told, before those that have not are killed


class ApiChildren:
    def __init__(self) -> None:
        self.by_number: dict[int, ApiChild] = {}  # from 1
        self._news = asyncio.Event()

    def add(self, number: int, child: ApiChild) -> None:
        self.by_number[number] = child

    def remove(self, number: int) -> None:
        del self.by_number[number]
        self.heard()

    def all(self) -> list[ApiChild]:
        return list(self.by_number.values())

    def serving(self) -> list[ApiChild]:
        return [child for child in self.all() if child.has_served]

    def tell(self, message: ToFront) -> None:
        for child in self.all():
            child.send(message)

    def signal(self, number: signal.Signals) -> None:
        for child in self.all():
            child.signal(number)

    def heard(self) -> None:
        """One of them said something, or is gone."""
        self._news.set()

    async def until(self, is_done: Callable[[], bool]) -> None:
        while not is_done():
            self._news.clear()
            await self._news.wait()

    async def until_all(self, have: Callable[[ApiChild], bool]) -> None:
        """Those that serve have taken in what they were told. One that does not is killed: it would serve what is no
        longer served. The next one begins with it."""

        def is_done() -> bool:
            return all(have(child) for child in self.serving())

        try:
            async with asyncio.timeout(TAKEN_S):
                await self.until(is_done)
        except TimeoutError:
            for child in self.serving():
                if not have(child):
                    child.signal(signal.SIGKILL)
            await self.until(is_done)

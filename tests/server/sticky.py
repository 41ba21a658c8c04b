"""A layer around the application that sticks the event loop when a known number of answers is under way."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any


class StickyMiddleware:
    """Requests with `x-together: N` go on when there are N of them. The one with `x-sticks: FILE` waits until the heads
    of as many streams as `x-streams` says are out, makes the file, and sticks; where there is a file, it goes on."""

    def __init__(self, app: Any) -> None:
        self._app = app
        self._arrived = 0
        self._heads = 0
        self._changed = asyncio.Condition()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        given = {name.decode(): value.decode() for name, value in scope.get("headers", ())}
        if "x-sticks" in given:
            await self._stick(Path(given["x-sticks"]), int(given["x-streams"]))
        elif "x-together" in given:
            await self._together(int(given["x-together"]))

            async def count_heads(message: Any) -> None:
                await send(message)
                if message["type"] == "http.response.start":
                    async with self._changed:
                        self._heads += 1
                        self._changed.notify_all()

            await self._app(scope, receive, count_heads)
            return
        await self._app(scope, receive, send)

    async def _together(self, count: int) -> None:
        async with self._changed:
            self._arrived += 1
            self._changed.notify_all()
            await self._changed.wait_for(lambda: self._arrived % count == 0)

    async def _stick(self, marker: Path, streams: int) -> None:
        if not marker.exists():
            async with self._changed:
                await self._changed.wait_for(lambda: self._heads >= streams)
            marker.touch()
            time.sleep(3600)

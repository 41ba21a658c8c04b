"""How much text work one turn of an event loop may do, for all requests together."""

from __future__ import annotations

import asyncio

LEAST = 64  # characters that any work counts for: calls and templates take their time, however short the text


class LoopShare:
    def __init__(self, limit: int) -> None:
        self._limit = limit  # characters
        self._used = 0  # in this turn

    def take(self, size: int) -> bool:
        """Whether so much may be done at once. What may not is for a thread."""
        size = max(size, LEAST)
        if self._used + size > self._limit:
            return False
        if not self._used:
            asyncio.get_running_loop().call_soon(self._renew)
        self._used += size
        return True

    def _renew(self) -> None:
        self._used = 0

"""How long each stage of a start took."""

from __future__ import annotations

import time
from collections.abc import Callable


class StartClock:
    def __init__(self, on_stage: Callable[[str], None]) -> None:
        self._on_stage = on_stage
        self._last = time.perf_counter()

    def lap(self, what: str) -> None:
        now = time.perf_counter()
        self._on_stage(f"{what} ({now - self._last:.2f} s)")
        self._last = now

"""Which request a thread is stuck in."""

from __future__ import annotations

import sys
from collections.abc import Iterable


class Suspects:
    """All that the frames of a thread name, as they are now."""

    def __init__(self, thread_id: int) -> None:
        self._ids: set[int] = set()
        frame = sys._current_frames().get(thread_id)
        while frame is not None:
            self._ids.update(map(id, frame.f_locals.values()))
            frame = frame.f_back

    def include_any(self, things: Iterable[object]) -> bool:
        return any(thing is not None and id(thing) in self._ids for thing in things)

"""File descriptors kept for the day when there are no others: an engine can be started again although a server's
connections have taken all there are."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

SPARE = 16  # a socketpair, /dev/null, and what making a process takes


class DescriptorReserve:
    def __init__(self, count: int = SPARE) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """They are free inside; nothing else of this thread may open any meanwhile."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def fill(self) -> None:
        """After a time without descriptors to spare, there may be some again."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

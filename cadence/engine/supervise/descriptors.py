"""File descriptors in reserve, so that an engine can be restarted while connections hold all others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

SPARE = 16  # a socketpair, /dev/null, and what starting a process needs


class DescriptorReserve:
    def __init__(self, count: int = SPARE) -> None:
        self._count = count
        self._held: list[int] = []
        self.fill()

    @contextlib.contextmanager
    def released(self) -> Iterator[None]:
        """Inside, the descriptors are free. This thread opens no others meanwhile."""
        self.close()
        try:
            yield
        finally:
            self.fill()

    def close(self) -> None:
        while self._held:
            os.close(self._held.pop())

    def fill(self) -> None:
        """Takes what is missing, as far as the system has descriptors."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

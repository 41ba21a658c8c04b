"""The end of the process, which nothing may hold up: no thread that is not done, no engine that does not stop, no event
loop that is stuck."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable


class ExitDeadline:
    """`last` is done before the process ends hard; it takes little time."""

    def __init__(self, last: Callable[[], None]) -> None:
        self._last = last

    def within(self, seconds: float, status: int) -> None:
        """The process is gone by then, in good order or not. May be called again; the earliest counts."""
        timer = threading.Timer(seconds, self.now, (status,))
        timer.daemon = True
        timer.start()

    def now(self, status: int) -> None:
        try:
            self._last()
        finally:
            os._exit(status)


class NoExitDeadline(ExitDeadline):
    """For a server that is not its process."""

    def __init__(self) -> None:
        super().__init__(lambda: None)

    def within(self, seconds: float, status: int) -> None:
        pass

    def now(self, status: int) -> None:
        pass


NO_EXIT_DEADLINE = NoExitDeadline()

"""Work that may take so much of the processor's time and no more, however busy the machine is."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class TooLongError(Exception):
    pass


@contextmanager
def at_most(seconds: float, what: object = "") -> Iterator[None]:
    """In the main thread. Ends regular expressions, too, which look for signals now and then."""

    def end(number: int, frame: FrameType | None) -> None:
        raise TooLongError(f"more than {seconds} s of the processor: {what!r}")

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

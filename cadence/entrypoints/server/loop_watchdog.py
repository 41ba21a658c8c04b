"""A thread that notices an event loop that is stuck, and says where.

It counts its own seconds, not those of a clock: a process that was stopped and goes on is not stuck. Where the loop is
stuck in code that never lets another thread run (a regular expression, an extension), the thread cannot act: a timer of
the processor's time, which the thread winds up at each look, then ends the process by a signal.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import signal
import sys
import threading
from collections.abc import Callable

TICK_S = 1.0
logger = logging.getLogger("cadence.server")


class LoopWatchdog:
    """Use as a context manager on the loop that is watched, in the main thread."""

    def __init__(self, limit_s: float, on_stuck: Callable[[], None]) -> None:
        """limit_s: without a turn of the loop; 0 = none. on_stuck: called once, in the watchdog's thread"""
        self._limit_s = limit_s
        self._on_stuck = on_stuck
        self._tick_s = min(TICK_S, limit_s / 4)  # between two looks
        self._turned = threading.Event()  # the loop has had a turn since it was asked
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)

    def __enter__(self) -> LoopWatchdog:
        self._loop = asyncio.get_running_loop()
        if self._limit_s:
            faulthandler.register(signal.SIGPROF, sys.__stderr__ or 2, all_threads=True, chain=True)
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self._limit_s:
            self._thread.join(self._tick_s)
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    def _watch(self) -> None:
        silent_s = 0.0
        self._ask()
        while not self._over.wait(self._tick_s):
            signal.setitimer(signal.ITIMER_PROF, self._limit_s)
            if self._turned.is_set():
                silent_s = 0.0
                self._ask()
            else:
                silent_s += self._tick_s
            if silent_s >= self._limit_s:
                self._end()
                return

    def _ask(self) -> None:
        self._turned.clear()
        try:
            self._loop.call_soon_threadsafe(self._turned.set)
        except RuntimeError:  # the loop is closed
            self._over.set()

    def _end(self) -> None:
        """Where the loop is stuck stands in the log."""
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        logger.error("the event loop had no turn for %g s; the threads of the process:", self._limit_s)
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        self._on_stuck()

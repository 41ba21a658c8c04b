"""A thread that ends a process whose event loop is stuck, so that whoever supervises it starts another.

It counts its own seconds, not those of a clock: a process that was stopped and goes on is not stuck.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import sys
import threading

from cadence.entrypoints.server.exit_deadline import ExitDeadline

TICK_S = 1.0
logger = logging.getLogger("cadence.server")


class LoopWatchdog:
    """Use as a context manager on the loop that is watched."""

    def __init__(self, limit_s: float, deadline: ExitDeadline, tick_s: float = TICK_S) -> None:
        """limit_s: without a turn of the loop; 0 = none. tick_s: between two looks"""
        self._limit_s = limit_s
        self._deadline = deadline
        self._tick_s = tick_s
        self._turned = threading.Event()  # the loop has had a turn since it was asked
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="loop watchdog", daemon=True)

    def __enter__(self) -> LoopWatchdog:
        self._loop = asyncio.get_running_loop()
        if self._limit_s:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        silent_s = 0.0
        self._ask()
        while not self._over.wait(self._tick_s):
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
        logger.error("the event loop had no turn for %g s: the process ends; its threads:", self._limit_s)
        faulthandler.dump_traceback(sys.__stderr__ or 2, all_threads=True)
        self._deadline.now(1)

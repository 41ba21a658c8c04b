"""Signals while the engine starts: the first ends the start, the second the process."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cadence.entrypoints.server.exit_deadline import ExitDeadline

START_EXIT_S = 5.0  # from the first signal to the end of the process, whatever the start waits for

T = TypeVar("T")


class StoppedWhileStarting(Exception):  # noqa: N818 (nothing is wrong)
    """A signal came before the engine was ready."""


class StartSignals:
    def __init__(self, deadline: ExitDeadline, say: Callable[[str], None]) -> None:
        self._deadline = deadline
        self._say = say
        self._signals = 0
        self._task: asyncio.Task[Any] | None = None

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of `work`; StoppedWhileStarting where a signal came first."""
        loop = asyncio.get_running_loop()
        task = self._task = asyncio.ensure_future(work)
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)
        try:
            return await task
        except asyncio.CancelledError:
            if not self._signals:
                raise
            raise StoppedWhileStarting from None

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals > 1:
            self._deadline.now(1)
        self._say("stopped before it was ready")
        self._deadline.within(START_EXIT_S, 0)
        if self._task is not None:
            self._task.cancel()

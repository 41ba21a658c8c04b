"""Ctrl-C between two steps of an engine, never within one."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class HeldInterrupts:
    """While entered, a first SIGINT waits for `check`; a second one interrupts at once. An engine that was interrupted
    within a step would no longer know what its device has computed. Where the program has a handler of its own, or in
    another thread than the main one, nothing is held."""

    def __init__(self) -> None:
        self._holds = False
        self._is_pending = False

    def check(self) -> None:
        if self._is_pending:
            self._is_pending = False
            raise KeyboardInterrupt

    def __enter__(self) -> Self:
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._holds = _install(self._hold)
        return self

    def __exit__(self, *error: object) -> None:
        if self._holds:
            _install(signal.default_int_handler)
        if error[0] is None:
            self.check()

    def _hold(self, number: int, frame: FrameType | None) -> None:
        if self._is_pending:
            raise KeyboardInterrupt
        self._is_pending = True


def _install(handler: signal._HANDLER) -> bool:
    """-> whether it could be: Python leaves signals to its main thread."""
    try:
        signal.signal(signal.SIGINT, handler)
    except ValueError:
        return False
    return True

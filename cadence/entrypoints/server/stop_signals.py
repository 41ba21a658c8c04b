"""SIGINT and SIGTERM as the loop reads them: another thread can see one that a loop that is stuck has not read."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable

NUMBERS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Made in the main thread, on the running loop; heard until the process ends."""

    def __init__(self, on_signal: Callable[[], None]) -> None:
        self._on_signal = on_signal
        self._read, self._write = socket.socketpair()
        for end in (self._read, self._write):
            end.setblocking(False)
        for number in NUMBERS:
            signal.signal(number, lambda *_: None)  # the byte in the socket is what counts
        signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)
        asyncio.get_running_loop().add_reader(self._read, self._take)

    def is_pending(self) -> bool:
        """From any thread: whether one came that the loop has not read."""
        with contextlib.suppress(BlockingIOError):
            return any(byte in NUMBERS for byte in self._read.recv(64, socket.MSG_PEEK))
        return False

    def _take(self) -> None:
        for byte in self._read.recv(64):
            if byte in NUMBERS:
                self._on_signal()

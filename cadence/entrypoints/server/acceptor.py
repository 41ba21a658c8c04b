"""Accepts connections for processes that serve them, and deals them out."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

BACKLOG = 4096
AT_ONCE = 64  # connections; then other tasks of the event loop run
PAUSE_S = 0.1  # where there are no descriptors left


class Acceptor:
    """Listens from the first `resume` on; while it pauses, connections wait with the system."""

    def __init__(self, bound: socket.socket, deal: Callable[[socket.socket], None]) -> None:
        """deal: is given every connection, and owns it from there on"""
        self._bound = bound
        self._deal = deal
        self._is_listening = False
        self._is_paused = True

    def resume(self) -> None:
        if not self._is_listening:
            self._bound.setblocking(False)
            self._bound.listen(BACKLOG)
            self._is_listening = True
        if self._is_paused:
            self._is_paused = False
            asyncio.get_running_loop().add_reader(self._bound.fileno(), self._accept)

    def pause(self) -> None:
        if not self._is_paused:
            self._is_paused = True
            asyncio.get_running_loop().remove_reader(self._bound.fileno())

    def _accept(self) -> None:
        for _ in range(AT_ONCE):
            try:
                connection, _ = self._bound.accept()
            except (BlockingIOError, ConnectionAbortedError, InterruptedError):
                return
            except OSError:
                self.pause()
                asyncio.get_running_loop().call_later(PAUSE_S, self.resume)
                return
            if connection.family != socket.AF_UNIX:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._deal(connection)
            if self._is_paused:
                return

"""How messages travel between an engine and its ranks, whatever lies between: memory on one machine (`ring`), a network
connection between two (`message_socket`)."""

from __future__ import annotations

import math
from typing import Protocol

from cadence.core.errors import CadenceError

MOST_MESSAGE = 1 << 30  # bytes


class MessageError(CadenceError):
    """What another process has written cannot be."""


class ClosedError(CadenceError):
    """The other side is gone or has closed, and nothing is left to read."""


class MessageReader(Protocol):
    def read(self, timeout_s: float = math.inf) -> bytes:
        """The next message. Raises TimeoutError, ClosedError once what was written is read, MessageError."""
        ...


class MessageWriter(Protocol):
    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        """Waits for slow readers. Raises TimeoutError, ClosedError."""
        ...


class ResultWriter(MessageWriter, Protocol):
    """By a rank."""

    def add_busy(self, seconds: float) -> None:
        """Reports time spent computing to the reader of its results."""
        ...

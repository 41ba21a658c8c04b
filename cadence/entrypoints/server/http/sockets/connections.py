"""All open connections of a server: how many there may be, and that those whose clients do not read end.

Each is an open file. Descriptors are given out from the lowest free number up, so a connection whose descriptor is at
the limit less a reserve tells that the rest are in use; the reserve is what the process needs to go on: to start its
engine again, to open files. A few of its places are for health checks.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import resource
from typing import Protocol

logger = logging.getLogger("cadence.server")

RESERVE = 128  # descriptors that are not for ordinary connections, or a quarter where there are few
SPARE = 32  # of those, for health checks when all else is taken
MAX_PERIOD_S = 5.0  # between two looks at the readers
MAX_KEPT_BYTES = 2**26  # of bodies of requests that are being answered


class Capacity(enum.Enum):
    OPEN = "open"
    HEALTH_ONLY = "health only"
    NONE = "none"


class Reader(Protocol):
    """A connection, as far as its client's reading goes."""

    def stalled(self, now: float, timeout: float) -> bool:
        """Whether bytes are waiting to be sent and none left for `timeout` seconds."""

    def abort(self) -> None: ...


class Connections:
    def __init__(self, write_timeout: float, max_connections: int = 0) -> None:
        """`write_timeout` in seconds; 0 = no limit, as for `max_connections`."""
        self._write_timeout = write_timeout
        self._max_connections = max_connections
        self._first_reserved = _first_reserved()
        self._open: set[asyncio.BaseTransport] = set()
        self._readers: set[Reader] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._kept_bytes = 0

    def may_keep(self, num_bytes: int) -> bool:
        """Whether there is room for so many more bytes of a request, which are counted then until `forget_kept`."""
        if self._kept_bytes + num_bytes > MAX_KEPT_BYTES:
            return False
        self._kept_bytes += num_bytes
        return True

    def forget_kept(self, num_bytes: int) -> None:
        self._kept_bytes -= num_bytes

    def enter(self, wire: asyncio.BaseTransport) -> Capacity:
        """`wire` is the transport next to the socket. Call `leave` when it is lost."""
        self._open.add(wire)
        excess = wire.get_extra_info("socket").fileno() - self._first_reserved + 1
        if self._max_connections:
            excess = max(excess, len(self._open) - self._max_connections)
        if excess <= 0:
            return Capacity.OPEN
        return Capacity.HEALTH_ONLY if excess <= SPARE else Capacity.NONE

    def leave(self, wire: asyncio.BaseTransport) -> None:
        self._open.discard(wire)

    def watch(self, reader: Reader) -> None:
        self._readers.add(reader)
        if self._write_timeout and self._timer is None:
            self._schedule_check()

    def unwatch(self, reader: Reader) -> None:
        self._readers.discard(reader)

    def hurry(self, write_timeout: float) -> None:
        """From now on no client that reads nothing is waited for longer than this, in seconds."""
        self._write_timeout = min(self._write_timeout or write_timeout, write_timeout)
        if self._timer is not None:
            self._timer.cancel()
        self._schedule_check()

    def _schedule_check(self) -> None:
        period = min(MAX_PERIOD_S, self._write_timeout / 4)
        self._timer = asyncio.get_running_loop().call_later(period, self._check)

    def _check(self) -> None:
        self._timer = None
        now = asyncio.get_running_loop().time()
        for reader in [reader for reader in self._readers if reader.stalled(now, self._write_timeout)]:
            logger.info("a client read nothing for %g s: its connection ends", self._write_timeout)
            reader.abort()
        if self._readers:
            self._schedule_check()


def _first_reserved() -> int:
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        limit = 2**30
    return limit - min(RESERVE, limit // 4)

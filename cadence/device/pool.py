"""The threads of the C library, as the engine owns them."""

from __future__ import annotations

import ctypes
import weakref
from typing import Protocol

from cadence.core.errors import CadenceError

MOST_THREADS = 1024  # as in threads.c


class Pool(Protocol):
    handle: int  # what the library knows it by; 0 = none: every call runs in its caller's thread

    def __enter__(self) -> None:
        """What this thread calls in the library until `__exit__` may use the pool's threads."""
        ...

    def __exit__(self, *error: object) -> None: ...


class NoPool:
    handle = 0

    def __enter__(self) -> None:
        """Nothing is shared."""

    def __exit__(self, *error: object) -> None:
        """Nothing was."""


class ThreadPool:
    """`num_threads` with the caller's own. The others start with the first work, and end with this object."""

    def __init__(self, library: ctypes.CDLL, num_threads: int) -> None:
        self.num_threads = num_threads
        self._library = library
        self.handle: int = library.cadence_pool_open(num_threads) or 0
        if not self.handle:
            raise CadenceError(f"a pool of {num_threads} threads could not be opened; the most are {MOST_THREADS}")
        weakref.finalize(self, library.cadence_pool_close, self.handle)

    def __enter__(self) -> None:
        self._library.cadence_enter(self.handle)

    def __exit__(self, *error: object) -> None:
        self._library.cadence_leave()

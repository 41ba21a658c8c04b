"""Words of 64 bits in shared memory: loads, stores that others see in order, and waiting for a change.

In C where there is a compiler: a waiter looks for a while, then sleeps until a store wakes it, and other threads of
this process run meanwhile. Else in plain Python, which looks again and again. Both may share one memory.
"""

from __future__ import annotations

import ctypes
import functools
import threading
import time
from ctypes import c_int64, c_uint64, c_void_p
from typing import Any, Protocol

from cadence.distributed.shared_memory import SharedMemory
from cadence.kernels.cpu.runtime.build import BuildError, load_library

SPIN_NS = 50_000  # of looking before a waiter sleeps: about what a short message takes
_NAP_S = 0.0002  # between two looks, in plain Python


class Words(Protocol):
    """Places are offsets in bytes, multiples of 8."""

    def load(self, place: int) -> int: ...

    def store(self, place: int, value: int) -> None:
        """What this process wrote before is seen by who sees the value; who waits for this word wakes up."""
        ...

    def wait(self, place: int, seen: int, timeout_s: float) -> bool:
        """-> whether the word is another than `seen` by now; may return early"""
        ...

    def wake(self, place: int) -> None:
        """Who waits for this word returns."""
        ...


class CWords:
    def __init__(self, memory: SharedMemory, library: ctypes.CDLL) -> None:
        self._first = c_uint64.from_buffer(memory.map)  # holds the mapping
        self._address = ctypes.addressof(self._first)
        self._load, self._store, self._wait, self._wake = _functions(library)

    def load(self, place: int) -> int:
        value: int = self._load(self._address + place)
        return value

    def store(self, place: int, value: int) -> None:
        self._store(self._address + place, value)

    def wait(self, place: int, seen: int, timeout_s: float) -> bool:
        return bool(self._wait(self._address + place, seen, SPIN_NS, int(timeout_s * 1e9)))

    def wake(self, place: int) -> None:
        self._wake(self._address + place)


def _functions(library: ctypes.CDLL) -> tuple[Any, Any, Any, Any]:
    load, store, wait, wake = (getattr(library, f"cadence_word_{name}") for name in ("load", "store", "wait", "wake"))
    load.restype, load.argtypes = c_uint64, [c_void_p]
    store.restype, store.argtypes = None, [c_void_p, c_uint64]
    wait.restype, wait.argtypes = c_int64, [c_void_p, c_uint64, c_int64, c_int64]
    wake.restype, wake.argtypes = None, [c_void_p]
    return load, store, wait, wake


class PlainWords:
    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._lock = threading.Lock()

    def load(self, place: int) -> int:
        value = c_uint64.from_buffer(self._memory.map, place).value
        self._fence()
        return value

    def store(self, place: int, value: int) -> None:
        self._fence()
        c_uint64.from_buffer(self._memory.map, place).value = value

    def wait(self, place: int, seen: int, timeout_s: float) -> bool:
        ends = time.monotonic() + timeout_s
        while self.load(place) == seen:
            if time.monotonic() >= ends:
                return False
            time.sleep(_NAP_S)
        return True

    def wake(self, place: int) -> None:
        """Every sleep is short."""

    def _fence(self) -> None:
        """A lock, taken and given back twice, keeps what is before it from moving past it on every CPU."""
        for _ in range(2):
            with self._lock:
                pass


def open_words(memory: SharedMemory) -> Words:
    library = _library()
    return PlainWords(memory) if library is None else CWords(memory, library)


@functools.cache
def _library() -> ctypes.CDLL | None:
    """None = there is nothing to compile it with."""
    try:
        return load_library()
    except BuildError:
        return None

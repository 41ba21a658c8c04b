"""Memory that processes share and that functions in C treat, as one process sees it."""

from __future__ import annotations

import ctypes
from typing import Protocol

from cadence.distributed.shared_memory import SharedMemory


class AreaFunctions(Protocol):
    def abort(self, address: int) -> None: ...


class MappedArea:
    """Who makes it hands `fd` to the others, who attach it."""

    def __init__(self, memory: SharedMemory, functions: AreaFunctions) -> None:
        self._memory = memory
        self._functions = functions
        self._first = ctypes.c_char.from_buffer(memory.map)  # holds the mapping
        self.address = ctypes.addressof(self._first)

    @property
    def fd(self) -> int:
        return self._memory.fd

    def abort(self) -> None:
        """A process is gone: the others return from what they wait for, and are told."""
        self._functions.abort(self.address)

    def release(self) -> None:
        """Gives this process's view back. Nothing may be called afterwards."""
        del self._first
        self._memory.release()

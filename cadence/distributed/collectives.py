"""The memory through which the ranks of one stage compute together, and what they call."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_memory import SharedMemory
from cadence.kernels.cpu.collectives import MOST_CONNECTED, SLOT_BYTES, CollectiveMemory, CpuCollectives, SharedArea
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import ONE_RANK, Collectives


class CollectiveArea:
    """One process's view of it. Who makes it hands `fd` to the ranks, who attach it."""

    def __init__(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._functions = CollectiveMemory(load_library())
        self._first = ctypes.c_char.from_buffer(memory.map)  # holds the mapping
        self.address = ctypes.addressof(self._first)

    @classmethod
    def create(cls, num_ranks: int) -> CollectiveArea:
        """Raises BuildError where the C library cannot be had."""
        functions = CollectiveMemory(load_library())
        area = cls(SharedMemory.create(functions.num_bytes(num_ranks)))
        functions.init(area.address, num_ranks)
        return area

    @classmethod
    def attach(cls, fd: int) -> CollectiveArea:
        return cls(SharedMemory(fd))

    @property
    def fd(self) -> int:
        return self._memory.fd

    def abort(self) -> None:
        """A rank is gone: the others return from what they compute together, and are told."""
        self._functions.abort(self.address)

    def release(self) -> None:
        """Gives this process's view back. Nothing may be called afterwards."""
        del self._first
        self._memory.release()


class NetworkArea:
    """Memory of one rank that reaches the others by connections: `descriptors`, by rank, its own -1. They are taken
    over."""

    def __init__(self, descriptors: Sequence[int], slot_bytes: int = SLOT_BYTES) -> None:
        if len(descriptors) > MOST_CONNECTED:
            raise ConfigError(
                f"tensor_parallel_size={len(descriptors)} across machines: at most {MOST_CONNECTED}",
                "tensor_parallel_size",
            )
        functions = CollectiveMemory(load_library())
        self._map = mmap.mmap(-1, functions.num_bytes(len(descriptors), slot_bytes))
        self._first = ctypes.c_char.from_buffer(self._map)  # holds the mapping
        self.address = ctypes.addressof(self._first)
        functions.init(self.address, len(descriptors), slot_bytes)
        self._states = functions.connect(self.address, descriptors)


def open_collectives(area: SharedArea, device: Device, mesh: Mesh) -> Collectives:
    """Among the ranks of a stage."""
    if mesh.tensor_parallel == 1:
        return ONE_RANK
    if not isinstance(device, CpuDevice):
        raise ConfigError("tensor_parallel_size above 1 is for the CPU so far", "tensor_parallel_size")
    return CpuCollectives(device.calls, CpuLibrary(device.calls), area, mesh.tp_rank, mesh.tensor_parallel)

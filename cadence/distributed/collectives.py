"""The memory through which the ranks of one stage compute together, and what they call."""

from __future__ import annotations

import ctypes

from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_memory import SharedMemory
from cadence.kernels.cpu.collectives import CollectiveMemory, CpuCollectives
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


def open_collectives(area: CollectiveArea, device: Device, mesh: Mesh) -> Collectives:
    """Among the ranks of a stage."""
    if mesh.tensor_parallel == 1:
        return ONE_RANK
    if not isinstance(device, CpuDevice):
        raise ConfigError("tensor_parallel_size above 1 is for the CPU so far", "tensor_parallel_size")
    return CpuCollectives(device.calls, CpuLibrary(device.calls), area, mesh.tp_rank, mesh.tensor_parallel)

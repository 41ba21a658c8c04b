"""The memory through which the ranks of one stage compute together, and what they call."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.device.cuda import CudaDevice
from cadence.distributed.mapped_area import MappedArea
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_memory import SharedMemory
from cadence.kernels.cpu.collectives import MOST_CONNECTED, SLOT_BYTES, CollectiveMemory, CpuCollectives, SharedArea
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import ONE_RANK, Collectives


class CollectiveArea(MappedArea):
    """In which the ranks of one stage compute together."""

    @classmethod
    def create(cls, num_ranks: int) -> CollectiveArea:
        """Raises BuildError where the C library cannot be had."""
        functions = CollectiveMemory(load_library())
        area = cls(SharedMemory.create(functions.num_bytes(num_ranks)), functions)
        functions.init(area.address, num_ranks)
        return area

    @classmethod
    def attach(cls, fd: int) -> CollectiveArea:
        return cls(SharedMemory(fd), CollectiveMemory(load_library()))


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


def open_collectives(area: SharedArea, device: Device, mesh: Mesh, ordered: bool = False) -> Collectives:
    """Among the ranks of a stage. ordered: those of GPUs, too, add in the order of ranks, whatever the size"""
    if mesh.tensor_parallel == 1:
        return ONE_RANK
    if isinstance(device, CudaDevice):
        from cadence.distributed.gpu_ranks import open_gpu_collectives  # needs Triton

        return open_gpu_collectives(area, device, (mesh.tp_rank, mesh.tensor_parallel), ordered)
    assert isinstance(device, CpuDevice)
    return CpuCollectives(device.calls, CpuLibrary(device.calls), area, mesh.tp_rank, mesh.tensor_parallel)

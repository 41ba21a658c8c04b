"""The memory through which the stages of a model reach each other, and what they call."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Sequence

from cadence.device.base import Device
from cadence.device.cpu import CpuDevice
from cadence.device.cuda import CudaDevice
from cadence.distributed.mapped_area import MappedArea
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_memory import SharedMemory
from cadence.distributed.staged import StagedLinks
from cadence.kernels.cpu.collectives import SharedArea
from cadence.kernels.cpu.links import CpuStageLinks, LinkMemory
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.links import ONE_STAGE, StageLinks

STREAM_BYTES = 8 << 20  # on their way to the next stage, before the one that sends waits
TOLD_BYTES = 1 << 20  # on their way back: the tokens of all steps in flight


class LinkArea(MappedArea):
    """Through which one process sends to another."""

    @classmethod
    def create(cls, capacity: int) -> LinkArea:
        """capacity: bytes that may be on their way. Raises BuildError where the C library cannot be had."""
        functions = LinkMemory(load_library())
        area = cls(SharedMemory.create(functions.num_bytes(capacity)), functions)
        functions.init(area.address, capacity)
        return area

    @classmethod
    def attach(cls, fd: int) -> LinkArea:
        return cls(SharedMemory(fd), LinkMemory(load_library()))


class NetworkLinkArea:
    """Memory of one end of a link to another machine, over a connection, which is taken over; -1 = a link that is not
    this rank's."""

    def __init__(self, descriptor: int) -> None:
        functions = LinkMemory(load_library())
        self._map = mmap.mmap(-1, functions.num_bytes(0))
        self._first = ctypes.c_char.from_buffer(self._map)  # holds the mapping
        self.address = ctypes.addressof(self._first)
        functions.connect(self.address, descriptor)


def create_links(num_stages: int) -> list[LinkArea]:
    """From each stage to the next, then from the last to each before it."""
    sizes = [STREAM_BYTES] * (num_stages - 1) + [TOLD_BYTES] * (num_stages - 1)
    return [LinkArea.create(size) for size in sizes]


def open_links(areas: Sequence[SharedArea], device: Device, mesh: Mesh) -> StageLinks:
    """areas: as `create_links` made them"""
    if mesh.pipeline_parallel == 1:
        return ONE_STAGE
    count, place = mesh.pipeline_parallel - 1, (mesh.pp_rank, mesh.pipeline_parallel)
    if isinstance(device, CudaDevice):
        calls = device.host_calls()
        host = CpuStageLinks(calls, CpuLibrary(calls), place, areas[:count], areas[count:])
        return StagedLinks(calls, host, device.torch_device)
    assert isinstance(device, CpuDevice)
    return CpuStageLinks(device.calls, CpuLibrary(device.calls), place, areas[:count], areas[count:])

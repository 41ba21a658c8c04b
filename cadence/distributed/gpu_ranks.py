"""How the ranks of a stage that have GPUs reach each other: they tell each other where they are, through the memory or
the connections that CPU ranks compute in, and all choose the same."""

from __future__ import annotations

import logging
from contextlib import suppress

import torch

from cadence.config import env
from cadence.device.calls import Calls
from cadence.device.cuda import CudaDevice
from cadence.device.driver import HANDLE_BYTES, Driver, DriverError
from cadence.distributed.exchange import Exchange
from cadence.distributed.gpu_collectives import ONE_SHOT_BYTES, GpuCollectives
from cadence.distributed.machine_id import machine_id, namespace
from cadence.distributed.nccl import ID_BYTES, NcclError, NcclExchange, NcclLibrary
from cadence.distributed.peer_exchange import PeerExchange, new_area
from cadence.distributed.staged import StagedExchange
from cadence.kernels.cpu.collectives import CpuCollectives, SharedArea
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import Collectives

_logger = logging.getLogger(__name__)

_NAME_BYTES = 256  # of a GPU's
Place = tuple[int, int]  # rank, and how many there are


class Meeting:
    """What ranks tell each other before they compute: at once, not by a stream."""

    def __init__(self, area: SharedArea, place: Place) -> None:
        calls = Calls(1)
        self._host = CpuCollectives(calls, CpuLibrary(calls), area, rank=place[0], size=place[1])

    def all(self, own: bytes, width: int) -> list[bytes]:
        """own: at most `width` bytes -> those of every rank, zeros after them"""
        padded = torch.frombuffer(bytearray(own.ljust(width, b"\0")), dtype=torch.uint8)
        found = self._host.all_gather(padded)
        self._host.check()
        return [bytes(each.numpy()) for each in found.view(-1, width)]

    def agree(self, own: bool) -> bool:
        """Whether all say so."""
        return all(answer == b"\1" for answer in self.all(bytes([own]), 1))


def open_gpu_collectives(area: SharedArea, device: CudaDevice, place: Place, ordered: bool) -> Collectives:
    """Small messages go through memory of the GPUs where all reach each other's, large ones by NCCL where each rank has
    a GPU of its own; what is left goes through the host."""
    meeting = Meeting(area, place)
    here = f"{machine_id()}/{namespace('net')}"  # those with the same reach each other on loopback
    gpus = meeting.all(f"{here} {device.bus_id}".encode(), _NAME_BYTES)
    calls = device.host_calls()
    host = CpuCollectives(calls, CpuLibrary(calls), area, rank=place[0], size=place[1])
    small: Exchange = StagedExchange(calls, host)
    large: Exchange = small
    if len(set(gpus)) == len(gpus):
        one_machine = len({name.split(b" ")[0] for name in gpus}) == 1
        large = small = _nccl(meeting, device, (place, one_machine, ordered), small)
        small = open_peers(meeting, device, place, large) if one_machine else large
    if place[0] == 0:
        _logger.info("small tensors go from GPU to GPU by %s, large ones by %s", small.name, large.name)
    return GpuCollectives(rank=place[0], size=place[1], exchanges=(small, large), check=host.check)


def _nccl(meeting: Meeting, device: CudaDevice, asked: tuple[Place, bool, bool], otherwise: Exchange) -> Exchange:
    """asked: (place, all on one machine, ordered). otherwise: where some rank cannot"""
    place, one_machine, ordered = asked
    if one_machine:
        env.keep_nccl_local()
    try:
        library, told = NcclLibrary(), b"-"
        told = library.new_id() if place[0] == 0 else told
    except NcclError:
        meeting.all(b"", ID_BYTES)
        return otherwise
    all_told = meeting.all(told, ID_BYTES)
    can = all(each.strip(b"\0") for each in all_told)
    return NcclExchange(device, library, (*place, all_told[0]), ordered) if can else otherwise


def open_peers(meeting: Meeting, device: CudaDevice, place: Place, otherwise: Exchange) -> Exchange:
    """otherwise: where some rank cannot reach another's memory"""
    area = new_area(Driver(), ONE_SHOT_BYTES)
    handles = meeting.all(area.handle, HANDLE_BYTES)
    opened: list[int] = []
    with suppress(DriverError):
        opened = [area.address if rank == place[0] else area.open(handle) for rank, handle in enumerate(handles)]
    return PeerExchange(device, place[0], area, opened) if meeting.agree(len(opened) == place[1]) else otherwise

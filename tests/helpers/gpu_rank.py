"""One of several ranks on one GPU, in a process of its own, which checks all that they compute together.

    python -m tests.helpers.gpu_rank RANK SIZE DESCRIPTOR

DESCRIPTOR: inherited, of a `CollectiveArea`. Ends with status 0 where everything was right.
"""

from __future__ import annotations

import sys
from functools import partial

import torch

from cadence.device.cuda import CudaDevice
from cadence.distributed.collectives import CollectiveArea, open_collectives
from cadence.distributed.gpu_collectives import GpuCollectives
from cadence.distributed.gpu_ranks import Meeting, open_peers
from cadence.distributed.mesh import Mesh
from cadence.distributed.nccl import NcclError, NcclExchange, NcclLibrary
from cadence.distributed.peer_exchange import PeerExchange
from cadence.distributed.staged import StagedExchange
from tests.helpers.collective_checks import check_all

REPLAYS = 50


def check_replays(device: CudaDevice, ranks: GpuCollectives) -> None:
    """Captured once, and right every time after: also when one rank is much slower than the others."""
    x = torch.zeros((4, 64), device=device.torch_device)
    other = torch.zeros((2, 8), dtype=torch.bfloat16, device=device.torch_device)

    def work() -> tuple[torch.Tensor, torch.Tensor]:
        return ranks.all_gather(ranks.all_reduce(x)), ranks.all_reduce(other)

    graph, _ = device.record(work)
    for turn in range(REPLAYS):
        if turn % ranks.size == ranks.rank and turn % 7 == 0:
            device.synchronize()
            torch.zeros(1 << 22).sort()
        x.fill_(turn + ranks.rank)
        other.fill_(turn % 3)
        found, small = graph.replay(work)
        total = turn * ranks.size + sum(range(ranks.size))
        assert torch.equal(found, torch.full((4, 64 * ranks.size), float(total), device=device.torch_device)), turn
        assert torch.equal(small, torch.full_like(small, turn % 3 * ranks.size)), turn


def main(rank: int, size: int, descriptor: int) -> None:
    device, area, place = CudaDevice(0, size), CollectiveArea.attach(descriptor), (rank, size)
    opened = open_collectives(area, device, Mesh(rank, size))
    assert isinstance(opened, GpuCollectives)
    staged = opened._large
    assert isinstance(staged, StagedExchange), "ranks of one GPU go through the host"
    check_all(opened, device.torch_device)
    check_replays(device, opened)
    device.synchronize()
    meeting = Meeting(area, place)
    peers = open_peers(meeting, device, place, staged)
    assert isinstance(peers, PeerExchange), "processes on one GPU reach each other's memory"
    through = GpuCollectives(rank, size, (peers, staged), partial(opened.check))
    check_all(through, device.torch_device)
    check_replays(device, through)
    device.synchronize()
    _show_nccl(meeting, device, place)


def _show_nccl(meeting: Meeting, device: CudaDevice, place: tuple[int, int]) -> None:
    """Whether NCCL lets ranks share a GPU is its own affair: shown, not asserted."""
    library = NcclLibrary()
    unique = meeting.all(library.new_id(), 128)[0]
    try:
        found = NcclExchange(device, library, (*place, unique), False)
        print("NCCL takes ranks of one GPU", found.sum(torch.ones(2, device=device.torch_device)))
    except NcclError as error:
        print("NCCL does not take ranks of one GPU:", error)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))

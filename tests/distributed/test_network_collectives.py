"""Ranks that reach each other by sockets compute what plain torch makes of all their tensors, to the bit."""

from __future__ import annotations

import os
import signal
import socket
import time
import traceback
from collections.abc import Callable

import pytest
import torch

from cadence.device.calls import Calls
from cadence.distributed.collectives import NetworkArea
from cadence.kernels.cpu.collectives import CpuCollectives
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import CollectiveAbortedError
from cadence.kernels.reference import collectives as reference

pytestmark = pytest.mark.device

Work = Callable[[CpuCollectives, Calls], None]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SLOT = 4096  # bytes: most of what is tested is done in pieces


class FarRanks:
    """Processes made by fork, each with a socket to every other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ends = [[-1] * size for _ in range(size)]
        for one in range(size):
            for other in range(one):
                self.ends[one][other], self.ends[other][one] = (end.detach() for end in socket.socketpair())

    def start(self, work: Work) -> list[int]:
        """-> process ids; a process whose work raises ends with status 1"""
        pids = [self._fork(rank, work) for rank in range(self.size)]
        for fd in (fd for ends in self.ends for fd in ends if fd >= 0):
            os.close(fd)
        return pids

    def run(self, work: Work) -> None:
        assert [os.waitpid(pid, 0)[1] for pid in self.start(work)] == [0] * self.size

    def _fork(self, rank: int, work: Work) -> int:
        if pid := os.fork():
            return pid
        status = 1
        try:
            for fd in (fd for other, ends in enumerate(self.ends) for fd in ends if fd >= 0 and other != rank):
                os.close(fd)
            torch.set_num_threads(1)
            calls, area = Calls(1), NetworkArea(self.ends[rank], SLOT)
            work(CpuCollectives(calls, CpuLibrary(calls), area, rank, self.size), calls)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def tensors(size: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_are_what_the_reference_says(size: int) -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        shapes = [(1,), (2, 3), (7, 129), (1, 5000), (100_000,), (64, 576)]
        for seed, (shape, dtype) in enumerate((shape, dtype) for shape in shapes for dtype in DTYPES):
            all_of_them = tensors(size, shape, dtype, seed)
            own = all_of_them[ranks.rank]
            assert torch.equal(ranks.all_reduce(own), reference.all_reduce(all_of_them))
            assert torch.equal(ranks.all_gather(own), reference.all_gather(all_of_them))
        ranks.check()

    FarRanks(size).run(work)


def test_ranks_at_changing_speeds_and_a_recorded_list() -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        x = torch.zeros(300)
        x.fill_(1.0 + ranks.rank)
        graph, first = calls.record(lambda: ranks.all_gather(ranks.all_reduce(x)))
        assert type(graph).__name__ == "CommandGraph"
        for number in range(1, 500):
            if number % 97 == ranks.rank:
                time.sleep(0.005)
            x.fill_(number * (1.0 + ranks.rank))
            assert torch.equal(graph.replay(lambda: first), torch.full((600,), 3.0 * number))
        ranks.check()

    FarRanks(2).run(work)


@pytest.mark.parametrize("how", ["killed", "other"])
def test_who_waits_for_a_rank_that_is_gone_or_asks_for_something_else_is_told(how: str) -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        for number in range(100):
            if ranks.rank == 2 and number == 50 and how == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.all_reduce(torch.ones(101 if ranks.rank == 2 and number == 50 else 100))
            try:
                ranks.check()
            except CollectiveAbortedError:
                assert number in (50, 51)  # by 51 a rank hears that the others have left
                os._exit(7)

    statuses = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in FarRanks(3).start(work)]
    assert statuses == [7, 7, -signal.SIGKILL if how == "killed" else 7]

"""What ranks compute together is what plain torch makes of all their tensors, to the bit; nobody waits for the dead."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import traceback
from collections.abc import Callable

import pytest
import torch

from cadence.device.calls import Calls
from cadence.distributed.shared_memory import SharedMemory
from cadence.kernels.cpu.collectives import CollectiveMemory, CpuCollectives
from cadence.kernels.cpu.runtime.build import load_library
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import CollectiveAbortedError, OneRank
from cadence.kernels.reference import collectives as reference

pytestmark = pytest.mark.device

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SLOT = 4096  # bytes: most of what is tested is done in pieces


class Ranks:
    """Processes made by fork, each with its end of one shared memory."""

    def __init__(self, size: int, slot_bytes: int = SLOT) -> None:
        self.size = size
        self.functions = CollectiveMemory(load_library())
        self._memory = SharedMemory.create(self.functions.num_bytes(size, slot_bytes))
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory.map))
        self.functions.init(self.address, size, slot_bytes)

    def start(self, work: Callable[[CpuCollectives, Calls], None]) -> list[int]:
        """-> process ids; a process whose work raises ends with status 1"""
        return [self._fork(rank, work) for rank in range(self.size)]

    def run(self, work: Callable[[CpuCollectives, Calls], None]) -> None:
        assert [os.waitpid(pid, 0)[1] for pid in self.start(work)] == [0] * self.size

    def _fork(self, rank: int, work: Callable[[CpuCollectives, Calls], None]) -> int:
        if pid := os.fork():
            return pid
        status = 1
        try:
            torch.set_num_threads(1)
            calls = Calls(1)
            work(CpuCollectives(calls, CpuLibrary(calls), self, rank, self.size), calls)
            status = 0
        except BaseException:
            traceback.print_exc()
            self.functions.abort(self.address)  # the others do not wait for it
        finally:
            os._exit(status)


def tensors(size: int, shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_all_are_what_the_reference_says(size: int) -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        shapes = [(1,), (2, 3), (7, 129), (1, 5000), (100_000,), (3, 1), (64, 576)]
        for seed, (shape, dtype) in enumerate((shape, dtype) for shape in shapes for dtype in DTYPES):
            all_of_them = tensors(size, shape, dtype, seed)
            own, root = all_of_them[ranks.rank], seed % size
            assert torch.equal(ranks.all_reduce(own), reference.all_reduce(all_of_them))
            assert torch.equal(ranks.all_gather(own), reference.all_gather(all_of_them))
            assert torch.equal(ranks.broadcast(own, root), reference.broadcast(all_of_them, root))
            if len(shape) == 2:
                whole = torch.cat(all_of_them, dim=-1)[:, : max(size * shape[1] - seed % 3, shape[1])]
                start = min(ranks.rank * shape[1], whole.shape[1] - shape[1])
                assert torch.equal(ranks.all_gather(whole.narrow(1, start, shape[1]), whole.shape[1]), whole)
                ids = torch.randint(0, size * 11, shape[:1], generator=torch.Generator().manual_seed(seed)).int()
                assert torch.equal(ranks.all_pick(own, ids, 11), reference.all_pick(all_of_them, ids, 11))
                assert torch.equal(ranks.own_ids(ids, range(3, 14)), reference.own_ids(ids, range(3, 14)))
        ids = torch.arange(5, dtype=torch.int32) + ranks.rank
        assert torch.equal(ranks.broadcast(ids, size - 1), torch.arange(5, dtype=torch.int32) + size - 1)
        ranks.check()

    Ranks(size).run(work)


def test_thousands_of_rounds_at_changing_speeds() -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        for number in range(5000):
            if number % 997 == ranks.rank:
                time.sleep(0.01)  # longer than anybody spins
            found = ranks.all_reduce(torch.full((1 + number % 50,), float(number + ranks.rank)))
            assert found[0] == found[-1] == 2.0 * number + 1
        ranks.check()

    Ranks(2).run(work)


def test_nobody_writes_over_what_another_still_reads() -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        x, wanted = torch.empty(250_000), torch.empty(250_000)
        for number in range(300):
            found = ranks.all_reduce(x.fill_(float(number)))
            assert torch.equal(found, wanted.fill_(2.0 * number)), number

    Ranks(2, slot_bytes=1 << 20).run(work)


def test_they_stand_in_a_recorded_list() -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        x = torch.zeros(300)
        x.fill_(1.0 + ranks.rank)
        graph, first = calls.record(lambda: ranks.all_gather(ranks.all_reduce(x)))
        assert type(graph).__name__ == "CommandGraph"
        assert torch.equal(first, torch.full((600,), 3.0))
        for number in range(1, 200):
            x.fill_(number * (1.0 + ranks.rank))
            assert torch.equal(graph.replay(lambda: first), torch.full((600,), 3.0 * number))
        ranks.check()

    Ranks(2).run(work)


def test_who_waits_for_a_dead_rank_returns_with_an_error() -> None:
    """Rank 2 dies in mid-operation; the rank that notices aborts."""

    def work(ranks: CpuCollectives, calls: Calls) -> None:
        x = torch.ones(100)
        for number in range(100):
            if ranks.rank == 2 and number == 50:
                os.kill(os.getpid(), signal.SIGKILL)
            ranks.all_reduce(x)
            try:
                ranks.check()
            except CollectiveAbortedError:
                assert number == 50
                os._exit(7)

    ranks = Ranks(3)
    pids = ranks.start(work)
    assert os.waitpid(pids[2], 0)[1] == signal.SIGKILL
    ranks.functions.abort(ranks.address)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids[:2]] == [7, 7]


def test_ranks_that_do_not_ask_for_the_same_are_told() -> None:
    def work(ranks: CpuCollectives, calls: Calls) -> None:
        ranks.all_reduce(torch.ones(10 + ranks.rank))
        with pytest.raises(CollectiveAbortedError):
            ranks.check()

    Ranks(2).run(work)


def test_one_rank_needs_nobody() -> None:
    x, one = torch.randn(3, 4), OneRank()
    assert one.all_reduce(x) is x and one.all_gather(x) is x and one.broadcast(x, 0) is x
    one.check()

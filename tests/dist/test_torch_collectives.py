"""What ranks compute together through torch.distributed is what the reference makes of all their tensors."""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from cadence.device.probe import open_device
from cadence.distributed.torch_collectives import ONE_SHOT_BYTES, TorchCollectives
from cadence.kernels.reference import collectives as reference

pytestmark = pytest.mark.device

SIZE = 2
DTYPES = (torch.float32, torch.bfloat16)


def tensors(shape: tuple[int, ...], dtype: torch.dtype, seed: int, size: int = SIZE) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator).to(dtype) for _ in range(size)]


def run_ranks(store: Path, work: Callable[[TorchCollectives], None]) -> None:
    """In processes made by fork: what one raises is printed, and its status is 1."""
    pids = []
    for rank in range(SIZE):
        if pid := os.fork():
            pids.append(pid)
            continue
        status = 1
        try:
            torch.set_num_threads(1)
            ranks = TorchCollectives("gloo", store, rank, SIZE, torch.device("cpu"))
            work(ranks)
            ranks.close()
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * SIZE


def check_all(ranks: TorchCollectives, device: torch.device) -> None:
    large = ONE_SHOT_BYTES // 2 + 4
    for seed, shape in enumerate([(1, 3), (7, 129), (3, large)]):
        for dtype in DTYPES:
            every = [each.to(device) for each in tensors(shape, dtype, seed, ranks.size)]
            own, root = every[ranks.rank], seed % ranks.size
            assert torch.equal(ranks.all_reduce(own), reference.all_reduce(every))  # of two, any order is the same
            assert torch.equal(ranks.all_gather(own), reference.all_gather(every))
            assert torch.equal(ranks.broadcast(own, root), reference.broadcast(every, root))
            whole = torch.cat(every, dim=-1)[:, : max(ranks.size * shape[1] - 1, shape[1])]
            start = min(ranks.rank * shape[1], whole.shape[1] - shape[1])
            assert torch.equal(ranks.all_gather(whole.narrow(1, start, shape[1]), whole.shape[1]), whole)
            ids = torch.arange(shape[0], dtype=torch.int32, device=device) * 5 % (4 * ranks.size)
            assert torch.equal(ranks.all_pick(own, ids, 4), reference.all_pick(every, ids, 4))
            assert torch.equal(ranks.own_ids(ids, range(2, 5)), reference.own_ids(ids, range(2, 5)))
    ranks.check()


def test_two_processes_on_the_host(tmp_path: Path) -> None:
    run_ranks(tmp_path / "store", lambda ranks: check_all(ranks, torch.device("cpu")))


@pytest.mark.gpu
def test_one_gpu_is_a_world_of_one_and_is_captured(tmp_path: Path) -> None:
    device = open_device("cuda")
    ranks = TorchCollectives("nccl", tmp_path / "store", 0, 1, device.torch_device)
    try:
        check_all(ranks, device.torch_device)
        x = torch.zeros((4, 64), device=device.torch_device)
        graph, first = device.record(lambda: ranks.all_gather(ranks.all_reduce(x)))
        x.fill_(3.0)
        assert torch.equal(graph.replay(lambda: first), torch.full_like(x, 3.0))
    finally:
        ranks.close()

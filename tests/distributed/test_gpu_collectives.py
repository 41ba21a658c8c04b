"""What ranks with GPUs compute together is what the reference makes of all their tensors."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest
import torch

from cadence.device.calls import Calls
from cadence.device.host_calls import HostCalls, Staging
from cadence.device.probe import open_device
from cadence.distributed.collectives import CollectiveArea
from cadence.distributed.gpu_collectives import GpuCollectives
from cadence.distributed.links import create_links
from cadence.distributed.staged import StagedExchange, StagedLinks
from cadence.kernels.cpu.collectives import CpuCollectives
from cadence.kernels.cpu.links import CpuStageLinks
from cadence.kernels.cpu.runtime.library import CpuLibrary
from tests.helpers.collective_checks import check_all

pytestmark = pytest.mark.device

SIZE = 2
HOST = torch.device("cpu")


def at_once(function: int, words: int) -> None:
    """A stream that is always empty: what is queued is done."""
    ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(words)


def host_calls() -> HostCalls:
    return HostCalls(at_once, lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8))


def in_threads(work: Callable[[int], None], size: int = SIZE) -> None:
    errors: list[BaseException] = []

    def guarded(rank: int) -> None:
        try:
            work(rank)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), errors
    assert not errors, errors


@pytest.mark.parametrize("size", [1, 2, 3])
def test_through_the_host(size: int) -> None:
    area = CollectiveArea.create(size)

    def work(rank: int) -> None:
        calls = host_calls()
        host = CpuCollectives(calls, CpuLibrary(calls), area, rank, size)
        staged = StagedExchange(calls, host)
        check_all(GpuCollectives(rank, size, (staged, staged), host.check), HOST)

    in_threads(work, size)


def test_stages_through_the_host() -> None:
    areas = create_links(2)
    sent = [torch.randn(rows, 64).to(torch.bfloat16) for rows in (1, 700, 3)]
    told = [torch.arange(count, dtype=torch.int32) for count in (5, 2, 9)]

    def work(stage: int) -> None:
        calls = host_calls()
        host = CpuStageLinks(calls, CpuLibrary(calls), (stage, 2), areas[:1], areas[1:])
        links = StagedLinks(calls, host, HOST)
        if stage == 0:
            for x in sent:
                links.send(x)
            for tokens in told:
                out = torch.zeros_like(tokens)
                links.receive_broadcast(out)
                assert torch.equal(out, tokens)
        else:
            for x, tokens in zip(sent, told, strict=True):
                assert torch.equal(links.receive(tuple(x.shape), x.dtype), x)
                links.broadcast(tokens)
        links.check()

    in_threads(work)


def test_what_graphs_have_seen_stays_where_it_is() -> None:
    made: list[torch.Tensor] = []

    def pinned(num_bytes: int) -> torch.Tensor:
        made.append(torch.empty(num_bytes, dtype=torch.uint8))
        return made[-1]

    staging = Staging(pinned)
    small = staging.take((4, 4), torch.float32).data_ptr()
    assert staging.take((2, 2), torch.int32).data_ptr() == small
    large = staging.take((1 << 20,), torch.float32).data_ptr()
    assert large != small and staging.take((4, 4), torch.float32).data_ptr() == large
    assert [each.data_ptr() for each in staging._buffers] == [small, large] and len(made) == 2


def test_words_of_a_call_are_kept_for_graphs() -> None:
    seen: list[tuple[int, int]] = []
    calls = HostCalls(lambda function, words: seen.append((function, words)), torch.empty)
    library = CpuLibrary(Calls(1))
    from cadence.device.calls import Function

    function = Function(library.functions.call_own_ids)
    for first in (1, 2, 1):
        calls.call(function, 0, 0, 0, first, 4)
    assert seen[0] == seen[2] != seen[1]


@pytest.mark.gpu
def test_nccl_in_a_world_of_one_is_captured() -> None:
    from cadence.device.cuda import CudaDevice
    from cadence.distributed.nccl import NcclExchange, NcclLibrary

    device = open_device("cuda")
    assert isinstance(device, CudaDevice)
    library = NcclLibrary()
    for ordered in (False, True):
        exchange = NcclExchange(device, library, (0, 1, library.new_id()), ordered)
        ranks = GpuCollectives(0, 1, (exchange, exchange), lambda: None)
        check_all(ranks, device.torch_device)
        x = torch.zeros((4, 64), device=device.torch_device)

        def work(ranks: GpuCollectives = ranks, x: torch.Tensor = x) -> torch.Tensor:
            return ranks.all_gather(ranks.all_reduce(x))

        graph, _ = device.record(work)
        x.fill_(3.0)
        assert torch.equal(graph.replay(work), torch.full_like(x, 3.0))
        device.synchronize()
        exchange.close()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 3])
def test_ranks_of_one_gpu(size: int) -> None:
    """Through the host and through memory of the GPU, also in graphs."""
    area = CollectiveArea.create(size)
    command = [sys.executable, "-m", "tests.helpers.gpu_rank"]
    ranks = [
        subprocess.Popen([*command, str(rank), str(size), str(area.fd)], pass_fds=(area.fd,)) for rank in range(size)
    ]
    try:
        assert [rank.wait(200) for rank in ranks] == [0] * size
    finally:
        for rank in ranks:
            rank.kill()

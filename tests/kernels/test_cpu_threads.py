"""Threads of the C kernels: results do not show how many there are, nor who else uses them, nor a fork."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

from cadence.config.args import EngineArgs
from cadence.core.errors import CadenceError
from cadence.device import cpus
from cadence.device.calls import Calls
from cadence.device.cpu import CpuDevice, cpu_caps
from cadence.device.cpus import usable_cpus
from cadence.device.pool import MOST_THREADS, ThreadPool
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows
from cadence.kernels.interface.expert_ops import Routing
from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.ops import DrawParams
from tests.helpers.kernel_cases import AttentionCase, make_inputs
from tests.helpers.packing import dequantize, functions, pack_f32, pack_int4, pack_int8, packed_ops

pytestmark = pytest.mark.device

Kernel = Callable[[CpuOps], list[torch.Tensor]]


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def packed(rows: int, cols: int) -> PackedRows:
    return PackedRows([pack_f32(drawn(rows, cols))])


def attention(ops: CpuOps, *sequences: tuple[int, int]) -> list[torch.Tensor]:
    case = AttentionCase(sequences, 6, 2)
    inputs = make_inputs(case)
    return [ops.paged_attention(inputs.q, inputs.kv, inputs.batch, 0, case.shape)]


def rotated(ops: CpuOps) -> list[torch.Tensor]:
    q, k, table = drawn(90, 8, 64), drawn(90, 4, 64), drawn(128, 64)
    ops.rope(q, k, torch.arange(90), table)
    return [q, k]


def stored(ops: CpuOps) -> list[torch.Tensor]:
    k_cache, v_cache = torch.zeros(20, 4, 16, 64), torch.zeros(20, 4, 16, 64)
    ops.write_kv((drawn(300, 4, 64), drawn(300, 4, 64) + 1), (k_cache, v_cache), torch.arange(300).flip(0))
    return [k_cache, v_cache]


def chosen(ops: CpuOps) -> list[torch.Tensor]:
    rows = torch.arange(3, dtype=torch.int32)
    params = DrawParams(
        torch.tensor([1.0, 0.7, 1.3]), torch.tensor([5, 6, 7]), torch.tensor([0, 1, 1], dtype=torch.int32)
    )
    return [*ops.draw(drawn(3, 50_000), rows, rows, params)]


def of_experts(ops: CpuOps) -> list[torch.Tensor]:
    packer, x = ops.packer("int8", torch.float32, torch.device("cpu")), drawn(70, 128)

    def matrix(rows: int, cols: int) -> PackedMatrix:
        return packer.stack([packer.pack_values(drawn(rows, cols), True)])

    experts = ops.experts.packed([(matrix(192, 128), matrix(128, 96)) for _ in range(5)], 0, torch.float32)
    routes = ops.experts.route(x, drawn(5, 128), Routing(2, renormalise=True, rounded=False))
    return [*routes, experts.product(x, routes, gelu=False)]


FAMILIES: dict[str, Kernel] = {
    "experts": of_experts,
    "linear, one row": lambda ops: [ops.packed.linear(drawn(1, 576), packed(500, 576), drawn(500))],
    "linear": lambda ops: [ops.packed.linear(drawn(70, 576), packed(333, 576), None)],
    "packed, one row": lambda ops: [ops.packed.linear(drawn(1, 512), PackedRows([pack_int4(drawn(900, 512))]), None)],
    "packed": lambda ops: [ops.packed.linear(drawn(70, 512), PackedRows([pack_int4(drawn(210, 512))]), None)],
    "packed rows": lambda ops: [
        ops.packed.lookup(torch.arange(90).int(), PackedRows([pack_int8(drawn(90, 576))]), 1.0)
    ],
    "norm": lambda ops: [ops.rms_norm(drawn(64, 576), drawn(576), 1e-5)],
    "add and norm": lambda ops: [*ops.add_rms_norm(drawn(64, 576), drawn(64, 576), drawn(576), 1e-5)],
    "gate": lambda ops: [ops.silu_mul(drawn(64, 1152)), ops.gelu_tanh_mul(drawn(64, 1152))],
    "rope": rotated,
    "write_kv": stored,
    "attention, few long": lambda ops: attention(ops, (1500, 1)),
    "attention, many": lambda ops: attention(ops, (3, 200), (40, 1), (7, 7)),
    "noise": lambda ops: [ops.gumbel_noise(torch.tensor([3, 4]), torch.tensor([9, 10]), 30_000)],
    "draw": chosen,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_bits_do_not_depend_on_the_number_of_threads(family: str) -> None:
    alone = FAMILIES[family](CpuOps(Calls(1)))
    for count in (2, 3, 4):
        together = FAMILIES[family](CpuOps(Calls(count)))
        assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True)), count


def test_packing_does_not_depend_on_the_number_of_threads() -> None:
    weight = drawn(300, 512)
    alone = pack_int4(weight)
    with ThreadPool(functions(), 3):
        together = pack_int4(weight)
    assert torch.equal(alone.data, together.data)
    assert torch.equal(dequantize(alone), packed_ops(pool=ThreadPool(functions(), 2)).embed(torch.arange(300), alone))


def test_callers_of_one_pool_do_not_disturb_each_other() -> None:
    ops, x, weight = CpuOps(Calls(3)), drawn(9, 576), packed(400, 576)
    expected = ops.packed.linear(x, weight, None)
    with ThreadPoolExecutor(4) as callers:
        results = list(callers.map(lambda _: ops.packed.linear(x, weight, None), range(200)))
    assert all(torch.equal(result, expected) for result in results)


def no_work() -> torch.Tensor:
    raise AssertionError("a recording needs none")


def test_a_fork_has_threads_of_its_own() -> None:
    calls = Calls(3)
    ops, x, weight = CpuOps(calls), drawn(1, 576), packed(900, 576)
    graph, output = calls.record(lambda: ops.packed.linear(x, weight, None))
    expected = output.clone()
    child = os.fork()
    if child == 0:  # nothing of pytest may run here
        try:
            same = all(torch.equal(graph.replay(no_work), expected) for _ in range(50))
            threads = len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 3
            os._exit(0 if same and threads == 3 else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert torch.equal(graph.replay(no_work), expected)


def test_threads_end_with_the_pool() -> None:
    if not os.path.isdir("/proc/self/task"):
        pytest.skip("threads are counted in /proc")
    before = len(os.listdir("/proc/self/task"))
    ops = CpuOps(Calls(4))
    ops.packed.linear(drawn(1, 576), packed(900, 576), None)
    assert len(os.listdir("/proc/self/task")) == before + 3
    del ops
    assert len(os.listdir("/proc/self/task")) == before


@pytest.mark.parametrize("count", [0, -1, MOST_THREADS + 1])
def test_pools_of_impossible_sizes_are_refused(count: int) -> None:
    with pytest.raises(CadenceError, match=str(MOST_THREADS)):
        ThreadPool(functions(), count)


class TestNumberOfThreads:
    """What is worth having, from affinity, topology and control groups."""

    @pytest.fixture(autouse=True)
    def eight_cpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cpus, "_allowed", lambda: set(range(8)))

    @staticmethod
    def write(root: Path, files: dict[str, str]) -> Path:
        for name, text in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")
        return root

    def test_every_cpu_where_nothing_is_known(self, tmp_path: Path) -> None:
        assert usable_cpus(tmp_path) == 8

    @pytest.mark.parametrize("name", ["core_cpus_list", "thread_siblings_list"])
    def test_siblings_count_once(self, tmp_path: Path, name: str) -> None:
        topology = {f"sys/devices/system/cpu/cpu{i}/topology/{name}": f"{i % 4},{i % 4 + 4}" for i in range(8)}
        assert usable_cpus(self.write(tmp_path, topology)) == 4

    @pytest.mark.parametrize(
        ("quota", "expected"), [("max 100000", 8), ("250000 100000", 2), ("10000 100000", 1), ("300000 100000", 3)]
    )
    def test_a_quota_of_the_second_kind(self, tmp_path: Path, quota: str, expected: int) -> None:
        files = {"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": quota, "sys/fs/cgroup/a/b/cpu.max": "max 1"}
        assert usable_cpus(self.write(tmp_path, files)) == expected

    @pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 3), ("20000", 1)])
    def test_a_quota_of_the_first_kind(self, tmp_path: Path, quota: str, expected: int) -> None:
        group = "sys/fs/cgroup/cpu,cpuacct"  # a container sees its own group here, under a path from outside
        files = {"proc/self/cgroup": "4:memory:/x\n3:cpu,cpuacct:/docker/1", f"{group}/cpu.cfs_period_us": "50000"}
        files[f"{group}/cpu.cfs_quota_us"] = quota
        assert usable_cpus(self.write(tmp_path, files)) == expected

    def test_the_option_reaches_the_kernels_and_torch(self) -> None:
        before = torch.get_num_threads()
        try:
            device = CpuDevice(3)
            assert device.calls.num_threads == torch.get_num_threads() == 3
            assert device.caps.name.endswith(" CPU, 3 threads") and cpu_caps(1).name.endswith(" CPU, 1 thread")
            assert EngineArgs(cpu_threads="3").cpu_threads == 3  # type: ignore[arg-type]
        finally:
            torch.set_num_threads(before)

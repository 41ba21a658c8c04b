"""The promises of a device: uploads are copies, downloads are snapshots, memory numbers make sense."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from cadence.core.errors import ConfigError
from cadence.device import cpu as cpu_module
from cadence.device.base import Device
from cadence.device.calls import Calls, CommandGraph, RerunGraph
from cadence.device.probe import open_device, probe_caps
from cadence.kernels.cpu.ops import CpuOps
from cadence.kernels.cpu.packed.weights import PackedRows
from tests.helpers.packing import pack_f32

pytestmark = pytest.mark.device


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_an_uploaded_array_may_be_reused_at_once(device: Device) -> None:
    array_np = np.zeros((64, 1024), dtype=np.int32)
    uploads = []
    for value in range(50):
        array_np[:] = value
        uploads.append(device.upload(array_np))
    for value, tensor in enumerate(uploads):
        assert tensor.device.type == device.caps.kind
        assert tensor.dtype == torch.int32
        assert bool((tensor == value).all())


def test_upload_takes_any_layout(device: Device) -> None:
    array_np = np.arange(12, dtype=np.int64).reshape(3, 4).T[::2]
    assert device.upload(array_np).tolist() == array_np.tolist()
    assert device.upload(np.zeros(0, dtype=np.float32)).shape == (0,)
    frozen = np.arange(3)
    frozen.setflags(write=False)
    assert device.upload(frozen).tolist() == [0, 1, 2]


def test_a_download_is_a_snapshot(device: Device) -> None:
    counter = torch.zeros(100_000, dtype=torch.int32, device=device.torch_device)
    transfers = []
    for _ in range(20):
        counter += 1
        transfers.append(device.download([counter, counter[:3].float()]))
    device.synchronize()
    for step, transfer in enumerate(transfers, start=1):
        whole_np, head_np = transfer.wait()
        assert (whole_np == step).all()
        assert head_np.dtype == np.float32
        assert head_np.tolist() == [step] * 3


_ACCOUNTS = """
import sys, torch
from cadence.device.probe import open_device

device = open_device(sys.argv[1])
assert 0 < device.free_memory() <= device.caps.total_memory
device.reset_peak_memory()
before = device.peak_memory()
block = torch.ones(256 * 2**20, dtype=torch.uint8, device=device.torch_device) if sys.argv[1] == "cuda" \
    else bytearray(256 * 2**20)  # goes back to the system when freed, unlike torch's own memory
device.synchronize()
peak = device.peak_memory()
assert peak >= before + 240 * 2**20, (before, peak)
del block
assert device.peak_memory() > peak - 16 * 2**20, "the kernel's own counters lag a little, but no more"
device.reset_peak_memory()
assert device.peak_memory() < peak - 240 * 2**20
"""


@pytest.mark.alone
def test_memory_is_accounted_for(device: Device) -> None:
    """In a process of its own: in this one, what other tests left goes back to the system at any time."""
    done = subprocess.run([sys.executable, "-c", _ACCOUNTS, device.caps.kind], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_caps_and_kinds(device: Device) -> None:
    assert probe_caps(device.caps.kind) == device.caps
    assert device.caps.total_memory > 2**28
    assert open_device("auto").caps.kind in ("cpu", "cuda")
    with pytest.raises(ConfigError, match="tpu"):
        open_device("tpu")


def test_what_is_recorded_is_done_once_and_again_with_each_replay(device: Device) -> None:
    """Also when all graphs recorded before are gone."""
    target = torch.zeros(8, device=device.torch_device)
    for value in range(3):
        target.fill_(value)
        graph, output = device.record(lambda: target.add_(1) * 2)
        assert output.tolist() == [2.0 * (value + 1)] * 8
        target.fill_(value)
        assert graph.replay(lambda: target.add_(1) * 2).tolist() == [2.0 * (value + 1)] * 8
        del graph, output
        device.trim_memory()


def test_cuda_without_a_gpu_is_a_clear_error() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError, match="no CUDA GPU"):
        open_device("cuda")


@pytest.mark.parametrize(
    ("flags", "bf16", "fp16"),
    [
        ({"avx2", "avx512_bf16"}, True, False),
        ({"amx_bf16", "amx_fp16"}, True, True),
        ({"asimd", "asimdhp"}, False, True),
        ({"asimd", "bf16"}, True, False),
        (set(), False, False),
    ],
)
def test_number_formats_are_read_off_the_cpu_flags(
    monkeypatch: pytest.MonkeyPatch, flags: set[str], bf16: bool, fp16: bool
) -> None:
    monkeypatch.setattr(cpu_module, "_cpu_flags", lambda: flags)
    caps = cpu_module.cpu_caps()
    assert (caps.native_bf16, caps.native_fp16) == (bf16, fp16)


def packed(rows: int, cols: int) -> PackedRows:
    return PackedRows([pack_f32(torch.randn(rows, cols))])


def no_work() -> torch.Tensor:
    raise AssertionError("a recording needs none")


class TestCalls:
    """Calls into C that are recorded and made again."""

    @staticmethod
    def ops() -> tuple[Calls, CpuOps]:
        calls = Calls()
        return calls, CpuOps(calls)

    def test_a_replay_reads_what_lies_in_the_inputs_then(self) -> None:
        calls, ops = self.ops()
        x, weight = torch.randn(3, 16), packed(8, 16)
        graph, output = calls.record(lambda: ops.silu_mul(ops.packed.linear(x, weight, None)))
        assert isinstance(graph, CommandGraph)
        assert torch.equal(output, ops.silu_mul(ops.packed.linear(x, weight, None)))
        x.copy_(torch.randn(3, 16))
        assert torch.equal(graph.replay(no_work), ops.silu_mul(ops.packed.linear(x, weight, None)))

    def test_two_recordings_share_the_arena_and_run_in_turns(self) -> None:
        calls, ops = self.ops()
        small, large = torch.randn(1, 64), torch.randn(200, 64)
        weights = [packed(64, 64) for _ in range(6)]

        def chain(x: torch.Tensor) -> torch.Tensor:
            for weight in weights:
                x = ops.packed.linear(x, weight, None)
            return x

        graphs = [calls.record(lambda x=x: chain(x))[0] for x in (small, large)]  # type: ignore[misc]
        for _ in range(2):
            for graph, x in zip(graphs, (small, large), strict=True):
                assert torch.equal(graph.replay(no_work), chain(x))

    def test_what_torch_computes_is_done_anew(self) -> None:
        calls, ops = self.ops()
        x, weight = torch.randn(3, 16), packed(8, 16)
        work = lambda: ops.packed.linear(x + 1, weight, None)  # noqa: E731
        graph, _ = calls.record(work)
        assert isinstance(graph, RerunGraph)
        x.copy_(torch.randn(3, 16))
        assert torch.equal(graph.replay(work), ops.packed.linear(x + 1, weight, None))

    def test_zeros_stay_zero(self) -> None:
        calls, ops = self.ops()
        ids, table, ones = torch.tensor([2, 0], dtype=torch.int32), packed(4, 32), torch.ones(32)

        def begin() -> torch.Tensor:
            x = ops.packed.lookup(ids, table, 1.0)
            return ops.add_rms_norm(x, ops.zeros_like(x), ones, 1e-6)[1]

        graph, _ = calls.record(begin)
        ids.copy_(torch.tensor([3, 1]))
        assert torch.equal(graph.replay(no_work), ops.packed.lookup(ids, table, 1.0))

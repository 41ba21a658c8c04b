"""The CPU as a device: memory is the host's own and every operation has finished when its call returns."""

from __future__ import annotations

import logging
import math
import os
import platform
import resource
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import numpy as np
import torch

from cadence.core.memory import give_back_memory
from cadence.core.shown import counted
from cadence.device.base import DeviceCaps, Graph, Output, Transfer
from cadence.device.calls import Calls
from cadence.device.cpus import allowed_cpus, usable_cpus
from cadence.device.regions import CpuRegions

_logger = logging.getLogger(__name__)

_BF16_FLAGS = {"amx_bf16", "avx512_bf16", "bf16", "svebf16"}
_FEW = 2**19  # numbers: ten lines of logits of a large vocabulary
_FP16_FLAGS = {"amx_fp16", "avx512_fp16", "asimdhp"}
_CGROUP = Path("/sys/fs/cgroup")


class CpuTransfer:
    """Copies that are already done."""

    def __init__(self, arrays: list[np.ndarray]) -> None:
        self._arrays = arrays

    def wait(self) -> list[np.ndarray]:
        return self._arrays


class CpuDevice:
    queues_work = False
    num_sharers = 1
    regions = CpuRegions()

    def __init__(self, num_threads: int = 0) -> None:
        """num_threads: of our kernels and of torch; 0 = as many as are worth having here."""
        self.torch_device = torch.device("cpu")
        if num_threads > allowed_cpus():
            _logger.warning("cpu_threads=%d, but this process may run on %d CPUs only", num_threads, allowed_cpus())
        self.calls = Calls(num_threads or usable_cpus())
        self.caps = cpu_caps(self.calls.num_threads)
        torch.set_num_threads(self.calls.num_threads)

    def upload(self, array_np: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(np.array(array_np, order="C"))

    def download(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        # Copied: the caller may write into its tensors before it reads the arrays.
        return CpuTransfer([np.array(tensor.numpy(), order="C") for tensor in tensors])

    def record(self, work: Callable[[], Output]) -> tuple[Graph[Output], Output]:
        return self.calls.record(work)

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        # numpy asks the system for zeroed pages and touches none; torch.zeros would write them all.
        if not (count := math.prod(shape)):
            return torch.zeros(shape, dtype=dtype)
        return torch.from_numpy(np.zeros(count * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)

    def allow_sleep(self) -> None:
        """All can be."""

    def torch_on(self, count: int) -> AbstractContextManager[None]:
        return self._one_torch_thread() if count <= _FEW and self.calls.num_threads > 1 else nullcontext()

    @contextmanager
    def _one_torch_thread(self) -> Generator[None, None, None]:
        """After each op that torch shares, its threads spin for a while, where ours want to run."""
        torch.set_num_threads(1)
        try:
            yield
        finally:
            torch.set_num_threads(self.calls.num_threads)

    def synchronize(self) -> None:
        """Nothing is ever in flight."""

    def trim_memory(self) -> None:
        give_back_memory()

    def free_memory(self) -> int:
        available = _proc_bytes("/proc/meminfo", "MemAvailable:", default=self.caps.total_memory // 2)
        limit = _cgroup_number("memory.max")
        if limit == 0:
            return available
        return min(available, max(limit - _cgroup_working_set(), 0))

    def peak_memory(self) -> int:
        return _proc_bytes("/proc/self/status", "VmHWM:", default=_max_rss())

    def reset_peak_memory(self) -> None:
        with suppress(OSError):  # without Linux the peak stays that of the whole life of the process
            Path("/proc/self/clear_refs").write_text("5")  # VmHWM starts again from the resident size of now


def cpu_caps(num_threads: int = 0) -> DeviceCaps:
    flags = _cpu_flags()
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = _cgroup_number("memory.max")
    return DeviceCaps(
        name=f"{platform.machine()} CPU, {counted(num_threads or usable_cpus(), 'thread')}",
        kind="cpu",
        total_memory=min(total, limit) if limit else total,
        native_bf16=bool(flags & _BF16_FLAGS),
        native_fp16=bool(flags & _FP16_FLAGS),
    )


def _cpu_flags() -> set[str]:
    """Feature names of the first core, as Linux prints them; empty elsewhere."""
    try:
        with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() in ("flags", "Features"):
                    return set(value.split())
    except OSError:
        pass
    return set()


def _proc_bytes(path: str, key: str, default: int) -> int:
    """The value of a `Key:   123 kB` line, in bytes."""
    try:
        with Path(path).open(encoding="utf-8") as lines:
            for line in lines:
                if line.startswith(key):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    return default


def _cgroup_number(name: str) -> int:
    """A number of the process's control group; 0 where there is none or it says `max`."""
    try:
        text = (_CGROUP / name).read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


def _cgroup_working_set() -> int:
    """Bytes charged to the group that cannot be dropped at once: all but the inactive file cache."""
    inactive = 0
    try:
        for line in (_CGROUP / "memory.stat").read_text().splitlines():
            if line.startswith("inactive_file "):
                inactive = int(line.split()[1])
    except OSError:
        pass
    return max(_cgroup_number("memory.current") - inactive, 0)


def _max_rss() -> int:
    rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return rss if sys.platform == "darwin" else rss * 1024

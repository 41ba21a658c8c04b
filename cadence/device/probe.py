"""Which device there is, and how to open it."""

from __future__ import annotations

from cadence.core.errors import ConfigError
from cadence.device.base import Device, DeviceCaps
from cadence.device.cpu import CpuDevice, cpu_caps
from cadence.device.cuda import CudaDevice, cuda_available, cuda_caps


def open_device(kind: str, cpu_threads: int = 0, index: int = 0, num_sharers: int = 1) -> Device:
    """`kind` is "auto" (the GPU if there is one), "cpu" or "cuda"; cpu_threads: 0 = as many as are worth having; index:
    which GPU, which so many processes of one engine use."""
    return CudaDevice(index, num_sharers) if _resolve(kind) == "cuda" else CpuDevice(cpu_threads)


def visible_gpus() -> int:
    """ConfigError where there is none."""
    return cuda_caps().count


def probe_caps(kind: str) -> DeviceCaps:
    return cuda_caps() if _resolve(kind) == "cuda" else cpu_caps()


def _resolve(kind: str) -> str:
    if kind == "auto":
        return "cuda" if cuda_available() else "cpu"
    if kind not in ("cpu", "cuda"):
        raise ConfigError(f"device must be 'auto', 'cpu' or 'cuda', not {kind!r}", field="device")
    return kind

"""The one door to the hardware. `cpu.py` and `cuda.py` are true twins, both with this interface."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
import torch

from cadence.device.regions import Regions

Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class DeviceCaps:
    """What `config.resolve` needs to know of the hardware. Plain data, no handles."""

    name: str  # "NVIDIA H200", "aarch64 CPU, 2 threads"
    kind: str  # "cpu" | "cuda"
    total_memory: int  # bytes
    native_bf16: bool  # bfloat16 matmul runs in hardware
    native_fp16: bool
    count: int = 1  # devices of this kind


class Transfer(Protocol):
    """Device tensors on their way to the host."""

    def wait(self) -> list[np.ndarray]: ...


class Graph(Protocol[Output]):
    """Work that was recorded and can be queued again in one call."""

    def replay(self, work: Callable[[], Output]) -> Output:
        """Queues it again -> what it returned, in the same memory each time, good until the next replay of any graph.

        `work` is what was recorded: done anew where a device could not keep it.
        """
        ...


class Device(Protocol):
    torch_device: torch.device
    caps: DeviceCaps
    queues_work: bool  # calls return before their work is done
    num_sharers: int  # processes of one engine that use it
    regions: Regions

    def upload(self, array_np: np.ndarray) -> torch.Tensor:
        """A new device tensor with the array's contents; the array may be reused at once, nothing waits."""
        ...

    def download(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        """Starts copying to the host after all work queued so far, without stopping the device."""
        ...

    def record(self, work: Callable[[], Output]) -> tuple[Graph[Output], Output]:
        """Does the work once, and keeps it -> how to do it again, and what it returned now. The tensors it uses must
        stay where they are, and nothing in it may depend on what they hold."""
        ...

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Zeroed memory for large pools; where the system can, pages are taken only when first written."""
        ...

    def allow_sleep(self) -> None:
        """What is allocated in regions from now on, and by `zeros`, can be given back."""
        ...

    def torch_on(self, count: int) -> AbstractContextManager[None]:
        """Around ops of torch's own on that many numbers each: few are not shared among its threads."""
        ...

    def synchronize(self) -> None: ...

    def trim_memory(self) -> None:
        """Gives memory that was freed, and is kept for the next who asks, back to the system."""
        ...

    def free_memory(self) -> int:
        """Bytes that could be allocated now."""
        ...

    def peak_memory(self) -> int:
        """Most bytes this process had allocated since `reset_peak_memory`."""
        ...

    def reset_peak_memory(self) -> None: ...

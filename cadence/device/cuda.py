"""NVIDIA GPUs. The only file that names `torch.cuda`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from cadence.core.errors import ConfigError
from cadence.device.base import DeviceCaps, Transfer


class CudaTransfer:
    """Copies on the side stream into pinned memory; `wait` blocks the host alone, never the device."""

    def __init__(self, pinned: list[torch.Tensor], done: torch.cuda.Event) -> None:
        self._pinned = pinned
        self._done = done

    def wait(self) -> list[np.ndarray]:
        self._done.synchronize()
        return [tensor.numpy() for tensor in self._pinned]


class CudaDevice:
    def __init__(self, index: int = 0) -> None:
        self.caps = cuda_caps(index)
        self.torch_device = torch.device("cuda", index)
        torch.cuda.set_device(self.torch_device)
        self._copy_stream = torch.cuda.Stream(self.torch_device)

    def upload(self, array_np: np.ndarray) -> torch.Tensor:
        # A pinned temporary per upload: the caching host allocator hands its memory out again only when the event it
        # records behind the copy has fired, so neither the caller's array nor the temporary is overwritten early.
        dtype = torch.from_numpy(np.empty(0, dtype=array_np.dtype)).dtype
        pinned = torch.empty(array_np.shape, dtype=dtype, pin_memory=True)
        pinned.numpy()[...] = array_np
        return pinned.to(self.torch_device, non_blocking=True)

    def download(self, tensors: Sequence[torch.Tensor]) -> Transfer:
        # Snapshots are taken in the order of the main stream, so later in-place writes there do not show.
        snapshots = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        pinned = [torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True) for tensor in snapshots]
        self._copy_stream.wait_stream(torch.cuda.current_stream(self.torch_device))
        with torch.cuda.stream(self._copy_stream):
            for target, snapshot in zip(pinned, snapshots, strict=True):
                target.copy_(snapshot, non_blocking=True)
                snapshot.record_stream(self._copy_stream)  # its memory is not reused before the copy is done
        return CudaTransfer(pinned, self._copy_stream.record_event())

    def zeros(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(shape, dtype=dtype, device=self.torch_device)

    def synchronize(self) -> None:
        torch.cuda.synchronize(self.torch_device)

    def free_memory(self) -> int:
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        stats = torch.cuda.memory_stats(self.torch_device)
        # What the caching allocator keeps but no tensor holds can be allocated too.
        return free + stats.get("reserved_bytes.all.current", 0) - stats.get("allocated_bytes.all.current", 0)

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated(self.torch_device)

    def reset_peak_memory(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.torch_device)


def cuda_available() -> bool:
    return torch.cuda.is_available()


def cuda_caps(index: int = 0) -> DeviceCaps:
    if not torch.cuda.is_available():
        raise ConfigError("device 'cuda' was asked for, but torch sees no CUDA GPU", field="device")
    properties = torch.cuda.get_device_properties(index)
    major, minor = properties.major, properties.minor
    return DeviceCaps(
        name=properties.name,
        kind="cuda",
        total_memory=properties.total_memory,
        native_bf16=major >= 8,
        native_fp16=(major, minor) >= (7, 0),
    )

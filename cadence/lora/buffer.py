"""The tensors of one adapter in one piece of memory, so that they move to a device in one copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.kernels.interface.lora_ops import NOTHING

_ALIGNMENT = 64  # bytes


@dataclass(frozen=True, slots=True)
class BufferSpan:
    """Where a tensor lies in the memory, and what it is."""

    start: int  # bytes
    shape: tuple[int, ...]
    dtype: torch.dtype

    def of(self, memory: torch.Tensor) -> torch.Tensor:
        """memory [bytes] uint8 -> a view"""
        count = self.dtype.itemsize
        for size in self.shape:
            count *= size
        if not count:
            return NOTHING if len(self.shape) == 1 else torch.empty(self.shape, dtype=self.dtype)
        return memory[self.start : self.start + count].view(self.dtype).view(self.shape)


class Gathered:
    """Tensors that are to lie together."""

    def __init__(self) -> None:
        self._tensors: list[torch.Tensor] = []
        self._spans: list[BufferSpan] = []
        self.num_bytes = 0

    def put(self, tensor: torch.Tensor) -> BufferSpan:
        span = BufferSpan(self.num_bytes, tuple(tensor.shape), tensor.dtype)
        self._tensors.append(tensor)
        self._spans.append(span)
        self.num_bytes += -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT
        return span

    def memory(self) -> torch.Tensor:
        """[num_bytes] uint8, on the host. numpy asks for large pages, and aligns less than kernels like."""
        raw = torch.from_numpy(np.zeros(self.num_bytes + _ALIGNMENT, dtype=np.uint8))
        skipped = -raw.data_ptr() % _ALIGNMENT
        memory = raw[skipped : skipped + max(self.num_bytes, 1)]
        for span, tensor in zip(self._spans, self._tensors, strict=True):
            if tensor.numel():
                span.of(memory).copy_(tensor)
        return memory


def narrow_type(tensors: Sequence[torch.Tensor]) -> torch.dtype:
    """The smallest type that holds all of their numbers as they are."""
    for dtype in (torch.bfloat16, torch.float16):
        if all(tensor.dtype is dtype or _holds(dtype, tensor) for tensor in tensors):
            return dtype
    return torch.float32


def _holds(dtype: torch.dtype, tensor: torch.Tensor) -> bool:
    wide = tensor.float()
    return torch.equal(wide.to(dtype).float(), wide)

"""Memory whose pages go back to the system and come again, while all addresses stay: recorded work holds these.

A region is what was allocated under one tag. `cuda_regions.py` is the twin of `CpuRegions`.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch

from cadence.core.memory import give_back_memory

LARGE = "large"  # the region of what `Device.zeros` hands out


class Regions(Protocol):
    enabled: bool  # memory can be given back

    def region(self, tag: str) -> AbstractContextManager[None]:
        """What this thread allocates on the device meanwhile belongs to a region. Not within another one."""
        ...

    def give_back(self, tag: str, contents: Sequence[torch.Tensor]) -> None:
        """The pages of a region, once all work is done. What these tensors hold is lost; the rest goes to the host's
        memory, where that is another."""
        ...

    def take_back(self, tag: str) -> None:
        """Its pages again: zeros, where contents were lost, or what was there."""
        ...

    def trim(self) -> None:
        """Memory that was freed, and is kept for the next who asks, goes back to the system; recorded work stays."""
        ...


class NoRegions:
    """Memory that cannot be given back."""

    enabled = False

    def region(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    def give_back(self, tag: str, contents: Sequence[torch.Tensor]) -> None:
        """All stays."""

    def take_back(self, tag: str) -> None:
        """All is there."""

    def trim(self) -> None:
        """All stays."""


class CpuRegions:
    """What is to be kept stays where it is: in the host's memory. So a region is what its callers name of it."""

    enabled = True

    def region(self, tag: str) -> AbstractContextManager[None]:
        return nullcontext()

    def give_back(self, tag: str, contents: Sequence[torch.Tensor]) -> None:
        for start, end in spans(contents):
            _drop_pages(start, end)

    def take_back(self, tag: str) -> None:
        """A page comes when it is touched."""

    def trim(self) -> None:
        give_back_memory()


def spans(tensors: Iterable[torch.Tensor]) -> list[tuple[int, int]]:
    """Addresses [start, end) of what these tensors hold, in order. What lies between two of them is another's."""
    found = sorted({(each.data_ptr(), each.data_ptr() + _extent(each)) for each in tensors if each.numel()})
    merged: list[tuple[int, int]] = []
    for start, end in found:
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], end)
        else:
            merged.append((start, end))
    return merged


def whole(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """All that their storages hold, as bytes."""
    storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors if each.numel()}
    return [torch.empty(0, dtype=torch.uint8, device=each.device).set_(each) for each in storages.values()]


def _extent(tensor: torch.Tensor) -> int:
    """Bytes from its first element to the end of its last one."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _drop_pages(start: int, end: int) -> None:
    """Those that lie within. Touched again they are zeros. On systems without this, nothing goes back."""
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and sys.platform == "linux":
        advise = ctypes.CDLL(None, use_errno=True).madvise
        advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        advise(first, last - first, mmap.MADV_DONTNEED)

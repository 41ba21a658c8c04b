"""Memory for packed weights: one after another in large pages, so that reading them all is one long stream."""

from __future__ import annotations

import mmap
from typing import Protocol

import torch

_CHUNK = 1 << 26  # bytes asked of the system at once; untouched pages cost nothing
_ALIGNMENT = 64  # bytes: a cache line


class Memory(Protocol):
    def take(self, nbytes: int) -> torch.Tensor:
        """[nbytes] uint8"""
        ...


class Heap:
    """Each weight by itself."""

    def take(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)


HEAP = Heap()


class PackedMemory:
    """Handed out from chunks; a chunk goes back to the system when the last tensor in it is gone."""

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._offset = 0

    def take(self, nbytes: int) -> torch.Tensor:
        if self._chunk is None or self._offset + nbytes > len(self._chunk):
            self._chunk, self._offset = _map(max(nbytes, _CHUNK)), 0
        start = self._offset
        self._offset = -(-(start + nbytes) // _ALIGNMENT) * _ALIGNMENT
        return torch.frombuffer(self._chunk, dtype=torch.uint8, count=nbytes, offset=start)


def _map(nbytes: int) -> mmap.mmap:
    chunk = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        chunk.madvise(mmap.MADV_HUGEPAGE)
    return chunk

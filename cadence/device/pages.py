"""Memory of a GPU in chunks whose pages come and go while their addresses stay, by `pages.c`."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Iterator, Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from cadence.device.compiled import compiled
from cadence.device.driver import DriverError
from cadence.device.regions import spans

SOURCE = Path(__file__).with_name("pages.c")
DRIVER = "libcuda.so.1"
ALLOCATE, FREE = "cadence_pages_allocate", "cadence_pages_free"  # as torch calls them
_LEAST_ADDRESSES = 256
_NUMBERS = itertools.count(1)

Span = tuple[int, int]  # addresses [start, end)


class Chunk(NamedTuple):
    address: int
    size: int  # bytes
    is_mapped: bool  # it has its pages


class Pages:
    """All chunks of this process."""

    def __init__(self, driver: str = DRIVER) -> None:
        """driver: name or path of its library"""
        with compiled(SOURCE) as path:
            self.path = str(path)
            self.library = library = ctypes.CDLL(self.path)
        library.cadence_pages_open.argtypes = [c_char_p]
        library.cadence_pages_list.argtypes = [c_int, c_void_p, c_int64]
        library.cadence_pages_list.restype = c_int64
        library.cadence_pages_unmap.argtypes = [c_uint64, c_int]
        library.cadence_pages_map.argtypes = [c_uint64]
        library.cadence_pages_to_host.argtypes = [c_void_p, c_uint64, c_size_t]
        library.cadence_pages_to_device.argtypes = [c_uint64, c_void_p, c_size_t]
        library.cadence_pages_clear.argtypes = [c_uint64, c_size_t]
        library.cadence_pages_pin.argtypes = [c_void_p, c_size_t]
        library.cadence_pages_unpin.argtypes = [c_void_p]
        self._check(library.cadence_pages_open(driver.encode()), f"{driver} cannot be opened, or is too old")

    def tag(self, number: int) -> None:
        """Of what is allocated from now on."""
        self.library.cadence_pages_tag(number)

    def chunks(self, tag: int) -> list[Chunk]:
        count = _LEAST_ADDRESSES
        while True:
            words_np = np.zeros((count, 3), dtype=np.uint64)
            found = int(self.library.cadence_pages_list(tag, words_np.ctypes.data, count))
            if found <= count:
                return sorted(Chunk(int(at), int(size), bool(mapped)) for at, size, mapped in words_np[:found])
            count = found

    def unmap(self, chunk: Chunk, for_good: bool = False) -> None:
        self._check(self.library.cadence_pages_unmap(chunk.address, for_good), "pages cannot be given back")

    def map(self, chunk: Chunk) -> None:
        mib = chunk.size >> 20
        self._check(self.library.cadence_pages_map(chunk.address), f"{mib} MiB of the GPU's memory cannot be had again")

    def to_host(self, host: int, span: Span) -> None:
        self._check(self.library.cadence_pages_to_host(host, span[0], span[1] - span[0]), "memory cannot be copied")

    def to_device(self, span: Span, host: int) -> None:
        self._check(self.library.cadence_pages_to_device(span[0], host, span[1] - span[0]), "memory cannot be copied")

    def clear(self, span: Span) -> None:
        self._check(self.library.cadence_pages_clear(span[0], span[1] - span[0]), "memory cannot be cleared")

    def pinned(self, num_bytes: int) -> np.ndarray:
        """Memory of the host that the GPU copies to and from at full speed, until `unpin`. [bytes] uint8"""
        made_np = np.empty(num_bytes, dtype=np.uint8)  # numpy asks for large pages
        if num_bytes:
            status = self.library.cadence_pages_pin(made_np.ctypes.data, num_bytes)
            self._check(status, f"{num_bytes >> 20} MiB of host memory cannot be pinned")
        return made_np

    def unpin(self, memory_np: np.ndarray) -> None:
        if memory_np.nbytes:
            self._check(self.library.cadence_pages_unpin(memory_np.ctypes.data), "host memory stays pinned")

    def _check(self, status: int, what: str) -> None:
        if status:
            raise DriverError(f"{what} (error {status} of the driver)")


class HeldRegion(NamedTuple):
    """What a region holds while it has no pages."""

    spans: list[Span]  # that were copied, one after another ...
    host_np: np.ndarray  # ... to here: [bytes] uint8
    lost: list[Span]


class PagedRegions:
    """Of one GPU. What allocates says which region it is for."""

    enabled = True

    def __init__(self, pages: Pages) -> None:
        self.pages = pages
        self._numbers: dict[str, int] = {}  # of tags
        self._kept: dict[str, HeldRegion] = {}  # by tag

    def number(self, tag: str) -> int:
        """No other regions of this process have it."""
        if tag not in self._numbers:
            self._numbers[tag] = next(_NUMBERS)
        return self._numbers[tag]

    def give_back(self, tag: str, contents: Sequence[torch.Tensor]) -> None:
        """Nothing is given back unless all that is to be kept lies in the host's memory."""
        chunks = [chunk for chunk in self.pages.chunks(self.number(tag)) if chunk.is_mapped]
        if tag in self._kept:
            return
        whole = [(chunk.address, chunk.address + chunk.size) for chunk in chunks]
        lost = list(_shared(whole, spans(contents)))
        kept = list(_without(whole, lost))
        host_np = self.pages.pinned(sum(end - start for start, end in kept))
        for host, span in zip(_places(host_np, kept), kept, strict=True):
            self.pages.to_host(host, span)
        self._kept[tag] = HeldRegion(kept, host_np, lost)
        for chunk in chunks:
            self.pages.unmap(chunk)

    def take_back(self, tag: str) -> None:
        """May be called again where there was too little memory."""
        if tag not in self._kept:
            return
        for chunk in self.pages.chunks(self.number(tag)):
            if not chunk.is_mapped:
                self.pages.map(chunk)
        kept = self._kept[tag]
        for host, span in zip(_places(kept.host_np, kept.spans), kept.spans, strict=True):
            self.pages.to_device(span, host)
        for span in kept.lost:
            self.pages.clear(span)
        del self._kept[tag]
        self.pages.unpin(kept.host_np)

    def __del__(self) -> None:
        """Of an engine that is shut down asleep: memory of the host is not freed while it is pinned."""
        for kept in self._kept.values():
            self.pages.unpin(kept.host_np)


def _places(host_np: np.ndarray, found: Sequence[Span]) -> Iterator[int]:
    """Addresses of the host for spans that lie one after another there."""
    at = host_np.ctypes.data
    for start, end in found:
        yield at
        at += end - start


def _shared(whole: Sequence[Span], parts: Sequence[Span]) -> Iterator[Span]:
    """What lies in both, in order; of each, none overlap."""
    for start, end in whole:
        for first, last in parts:
            if max(start, first) < min(end, last):
                yield max(start, first), min(end, last)


def _without(whole: Sequence[Span], parts: Sequence[Span]) -> Iterator[Span]:
    """The rest. parts: as `_shared` gives them"""
    for start, end in whole:
        at = start
        for first, last in parts:
            if start <= first < end:
                if at < first:
                    yield at, first
                at = last
        if at < end:
            yield at, end

"""Collectives of CPU ranks: calls into C over shared memory, which can be recorded like any other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p
from typing import Protocol

import torch

from cadence.device.calls import Caller
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import CollectiveAbortedError

SLOT_BYTES = 1 << 20  # of what one rank shows the others at a time
MOST_CONNECTED = 256  # ranks


class ConnectionState(ctypes.Structure):
    """`Connection` of exchange.h."""

    _fields_ = (("descriptor", c_int64), ("progress", c_int64 * 3), ("frame", c_int64 * 2))


class CollectiveMemory:
    """The functions that treat memory which ranks share, at an address of this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._bytes, self._init = library.cadence_collectives_bytes, library.cadence_collectives_init
        self._abort, self._aborted = library.cadence_collectives_abort, library.cadence_collectives_aborted
        self._bytes.restype, self._bytes.argtypes = c_int64, [c_int64, c_int64]
        self._init.restype, self._init.argtypes = None, [c_void_p, c_int64, c_int64]
        self._abort.restype, self._abort.argtypes = None, [c_void_p]
        self._aborted.restype, self._aborted.argtypes = c_int64, [c_void_p]
        self._connect = library.cadence_collectives_connect
        self._connect.restype, self._connect.argtypes = None, [c_void_p, c_void_p]

    def num_bytes(self, num_ranks: int, slot_bytes: int = SLOT_BYTES) -> int:
        count: int = self._bytes(num_ranks, slot_bytes)
        return count

    def init(self, address: int, num_ranks: int, slot_bytes: int = SLOT_BYTES) -> None:
        """By one process, of zeroed memory, before others use it. slot_bytes: a multiple of 64."""
        self._init(address, num_ranks, slot_bytes)

    def connect(self, address: int, descriptors: Sequence[int]) -> object:
        """Of memory that one rank has for itself: it reaches the others by sockets, one per rank, its own -1. -> to be
        kept as long as the memory is used"""
        states = (ConnectionState * len(descriptors))(*((descriptor,) for descriptor in descriptors))
        self._connect(address, ctypes.addressof(states))
        return states

    def abort(self, address: int) -> None:
        """Wakes all ranks; what they are computing together ends, and nothing more begins."""
        self._abort(address)

    def is_aborted(self, address: int) -> bool:
        return bool(self._aborted(address))


class SharedArea(Protocol):
    """Memory that was made with `CollectiveMemory`, mapped as long as this lives."""

    address: int


class CpuCollectives:
    def __init__(self, calls: Caller, library: CpuLibrary, area: SharedArea, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self._calls = calls
        self._c = library
        self._area = area  # the mapping goes with it
        self.address = area.address
        self._memory = CollectiveMemory(library.functions)

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        self._c.all_reduce(out=out, x=x, shared=self.address, rank=self.rank, count=x.numel(), dtype=x.dtype)
        return out

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        x, own = x.contiguous(), x.shape[-1]
        width = width or self.size * own
        out = self._calls.empty((*x.shape[:-1], width), x.dtype)
        self._c.all_gather(
            out=out, x=x, shared=self.address, rank=self.rank, rows=x.numel() // max(own, 1),
            row_bytes=own * x.element_size(), out_bytes=width * x.element_size(),
        )  # fmt: skip
        return out

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        ids = ids.contiguous()
        out = self._calls.empty(ids.shape, ids.dtype)
        self._c.own_ids(out=out, ids=ids, count=ids.shape[0], first=own.start, each=len(own))
        return out

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        x, ids = x.contiguous(), ids.contiguous()
        out = self._calls.empty(x.shape, x.dtype)
        self._c.all_pick(
            out=out, x=x, ids=ids, shared=self.address, rank=self.rank, rows=x.shape[0],
            row_bytes=x.shape[1] * x.element_size(), each=each,
        )  # fmt: skip
        return out

    def check(self) -> None:
        if self._memory.is_aborted(self.address):
            raise CollectiveAbortedError("a rank is gone, or ranks did not compute the same together")

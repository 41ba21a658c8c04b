"""Links between the stages of CPU ranks: calls into C over shared memory, which can be recorded like any other."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int64, c_void_p

import torch

from cadence.device.calls import Caller
from cadence.kernels.cpu.collectives import SharedArea
from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.collectives import CollectiveAbortedError


class LinkMemory:
    """The functions that treat memory which two processes share, at an address of this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._bytes, self._init = library.cadence_link_bytes, library.cadence_link_init
        self._abort, self._aborted = library.cadence_link_abort, library.cadence_link_aborted
        self._arrived = library.cadence_link_arrived
        self._bytes.restype, self._bytes.argtypes = c_int64, [c_int64]
        self._init.restype, self._init.argtypes = None, [c_void_p, c_int64]
        self._abort.restype, self._abort.argtypes = None, [c_void_p]
        self._connect = library.cadence_link_connect
        self._connect.restype, self._connect.argtypes = None, [c_void_p, c_int64]
        for function in (self._aborted, self._arrived):
            function.restype, function.argtypes = c_int64, [c_void_p]

    def num_bytes(self, capacity: int) -> int:
        count: int = self._bytes(capacity)
        return count

    def init(self, address: int, capacity: int) -> None:
        """By one process, of zeroed memory, before others use it. capacity: bytes that may be on their way"""
        self._init(address, capacity)

    def connect(self, address: int, descriptor: int) -> None:
        """Of memory that one end has for itself: it reaches the other by a socket."""
        self._connect(address, descriptor)

    def abort(self, address: int) -> None:
        """Wakes both ends; nothing is moved any more."""
        self._abort(address)

    def is_aborted(self, address: int) -> bool:
        return bool(self._aborted(address))

    def arrived(self, address: int) -> float:
        """When the last message had come in full, by time.monotonic; 0 = none did."""
        return float(self._arrived(address)) / 1e9


class CpuStageLinks:
    def __init__(
        self,
        calls: Caller,
        library: CpuLibrary,
        place: tuple[int, int],
        streams: Sequence[SharedArea],
        broadcasts: Sequence[SharedArea],
    ) -> None:
        """place: (stage, stages). streams: from each stage to the next. broadcasts: from the last stage
        to each before it"""
        self.stage, self.count = place
        self.is_last = self.stage == self.count - 1
        self._calls = calls
        self._c = library
        self._streams, self._broadcasts = streams, broadcasts
        self._memory = LinkMemory(library.functions)

    def send(self, x: torch.Tensor) -> None:
        self._send(x, self._streams[self.stage])

    def receive(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        out = self._calls.empty(shape, dtype)
        self._receive(out, self._streams[self.stage - 1])
        return out

    def broadcast(self, x: torch.Tensor) -> None:
        for link in self._broadcasts:
            self._send(x, link)

    def receive_broadcast(self, out: torch.Tensor) -> None:
        self._receive(out, self._broadcasts[self.stage])

    def arrived(self) -> float:
        received = [*self._streams[self.stage - 1 :][: self.stage > 0], *self._broadcasts[self.stage :][:1]]
        return max(self._memory.arrived(link.address) for link in received)

    def check(self) -> None:
        if any(self._memory.is_aborted(link.address) for link in (*self._streams, *self._broadcasts)):
            raise CollectiveAbortedError("a stage is gone, or stages did not compute the same")

    def _send(self, x: torch.Tensor, link: SharedArea) -> None:
        x = x.contiguous()
        self._c.link_send(x=x, link=link.address, bytes=x.numel() * x.element_size())

    def _receive(self, out: torch.Tensor, link: SharedArea) -> None:
        self._c.link_receive(out=out, link=link.address, bytes=out.numel() * out.element_size())

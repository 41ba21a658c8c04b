"""NCCL, called by its own library: what ranks on GPUs of their own exchange when it is large.

Not by torch.distributed: that needs a store which ranks meet at and a thread that watches them. Here ranks have met
already, and who watches the processes ends them.
"""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_int, c_size_t, c_void_p

import torch

from cadence.core.errors import CadenceError
from cadence.device.cuda import CudaDevice
from cadence.kernels.reference import collectives as reference

ID_BYTES = 128
_BYTES, _SUM = 1, 0
_DTYPES = {torch.float16: 6, torch.float32: 7, torch.bfloat16: 9}


class NcclError(CadenceError):
    """The library is not there, or refused a call."""


class UniqueId(ctypes.Structure):
    """What all ranks of a communicator know."""

    _fields_ = (("internal", c_char * ID_BYTES),)


class NcclLibrary:
    def __init__(self) -> None:
        try:
            self._library = library = ctypes.CDLL("libnccl.so.2")  # the one that torch has brought
        except OSError as error:
            raise NcclError(f"NCCL cannot be opened: {error}") from error
        library.ncclGetErrorString.restype, library.ncclGetErrorString.argtypes = c_char_p, [c_int]
        library.ncclGetUniqueId.argtypes = [ctypes.POINTER(UniqueId)]
        library.ncclCommInitRank.argtypes = [ctypes.POINTER(c_void_p), c_int, UniqueId, c_int]
        library.ncclAllReduce.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_int, c_void_p, c_void_p]
        library.ncclAllGather.argtypes = [c_void_p, c_void_p, c_size_t, c_int, c_void_p, c_void_p]
        library.ncclCommAbort.argtypes = [c_void_p]

    def new_id(self) -> bytes:
        """By one rank, for all."""
        made = UniqueId()
        self._check("ncclGetUniqueId", ctypes.byref(made))
        return bytes(made)

    def join(self, unique: bytes, rank: int, size: int) -> int:
        """Waits for the others -> the communicator, of the GPU that is current"""
        communicator = c_void_p()
        named = UniqueId.from_buffer_copy(unique)
        self._check("ncclCommInitRank", ctypes.byref(communicator), size, named, rank)
        return communicator.value or 0

    def all_reduce(self, x: torch.Tensor, out: torch.Tensor, communicator: int, stream: int) -> None:
        where = (x.data_ptr(), out.data_ptr(), x.numel(), _DTYPES[x.dtype], _SUM)
        self._check("ncclAllReduce", *where, communicator, stream)

    def all_gather(self, x: torch.Tensor, out: torch.Tensor, communicator: int, stream: int) -> None:
        """out: the bytes of all ranks, one after another"""
        self._check("ncclAllGather", x.data_ptr(), out.data_ptr(), x.nbytes, _BYTES, communicator, stream)

    def abort(self, communicator: int) -> None:
        self._check("ncclCommAbort", communicator)

    def _check(self, name: str, *arguments: object) -> None:
        if status := getattr(self._library, name)(*arguments):
            raise NcclError(f"{name}: {self._library.ncclGetErrorString(status).decode()}")


class NcclExchange:
    name = "NCCL"

    def __init__(self, device: CudaDevice, library: NcclLibrary, place: tuple[int, int, bytes], ordered: bool) -> None:
        """Waits for the others. place: (rank, size, what `new_id` gave one of them). ordered: sums are added in the
        order of ranks, whatever the size of a message"""
        rank, self._size, unique = place
        self._device = device
        self._library = library
        self._ordered = ordered
        self._communicator = library.join(unique, rank, self._size)

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        if self._ordered:
            return reference.all_reduce(list(self.gather(x).unbind()))
        x = x.contiguous()
        out = torch.empty_like(x)
        self._library.all_reduce(x, out, self._communicator, self._device.stream)
        return out

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        x = x.contiguous()
        out = x.new_empty((self._size, *x.shape))
        self._library.all_gather(x, out, self._communicator, self._device.stream)
        return out

    def close(self) -> None:
        self._library.abort(self._communicator)

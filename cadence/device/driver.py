"""What torch does not hand out of the NVIDIA driver: functions of the host in a stream, and memory that processes
share. By the driver's own library, whose functions keep their meaning from version to version."""

from __future__ import annotations

import ctypes
from ctypes import c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p

from cadence.core.errors import CadenceError

HANDLE_BYTES = 64
_LAZY_PEER_ACCESS = 1


class DriverError(CadenceError):
    """The driver refused a call."""


class MemoryHandle(ctypes.Structure):
    """Names memory of one process to another of the same machine."""

    _fields_ = (("reserved", c_char * HANDLE_BYTES),)


class Driver:
    """Of the GPU that is current in the calling thread, which torch has opened."""

    def __init__(self) -> None:
        try:
            self._library = library = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise DriverError(f"the NVIDIA driver's library cannot be opened: {error}") from error
        self._launch = library.cuLaunchHostFunc
        self._launch.argtypes = [c_void_p, c_void_p, c_void_p]
        library.cuMemAlloc_v2.argtypes = [ctypes.POINTER(c_uint64), c_size_t]
        library.cuMemsetD8_v2.argtypes = [c_uint64, ctypes.c_ubyte, c_size_t]
        library.cuIpcGetMemHandle.argtypes = [ctypes.POINTER(MemoryHandle), c_uint64]
        library.cuIpcOpenMemHandle_v2.argtypes = [ctypes.POINTER(c_uint64), MemoryHandle, c_uint]
        library.cuGetErrorName.argtypes = [c_int, ctypes.POINTER(c_char_p)]

    def launch_on_host(self, stream: int, function: int, argument: int) -> None:
        """Queues `function(argument)` after the stream's work; what follows in the stream waits for it. The two are
        addresses, good until it has run: as long as a graph may run it again. It may not call the driver."""
        self._check(self._launch(stream, function, argument), "cuLaunchHostFunc")

    def allocate(self, num_bytes: int) -> int:
        """Zeroed -> its address"""
        address = c_uint64()
        self._check(self._library.cuMemAlloc_v2(ctypes.byref(address), num_bytes), "cuMemAlloc")
        self._check(self._library.cuMemsetD8_v2(address, 0, num_bytes), "cuMemsetD8")
        return address.value

    def handle_of(self, address: int) -> bytes:
        """What another process opens it by."""
        handle = MemoryHandle()
        self._check(self._library.cuIpcGetMemHandle(ctypes.byref(handle), address), "cuIpcGetMemHandle")
        return bytes(handle)

    def open_handle(self, handle: bytes) -> int:
        """Memory of another process -> its address here"""
        address = c_uint64()
        named = MemoryHandle.from_buffer_copy(handle)
        opened = self._library.cuIpcOpenMemHandle_v2(ctypes.byref(address), named, _LAZY_PEER_ACCESS)
        self._check(opened, "cuIpcOpenMemHandle")
        return address.value

    def _check(self, status: int, what: str) -> None:
        if status:
            name = c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(name))
            raise DriverError(f"{what}: {(name.value or b'error').decode()} ({status})")

"""Memory that a process shares with those it starts: a file without a name, which goes when the last of them ends."""

from __future__ import annotations

import contextlib
import mmap
import os


class SharedMemory:
    """Zeroed. `fd` is handed to a child by inheritance (`pass_fds`); other children do not get it."""

    def __init__(self, fd: int) -> None:
        """Takes the descriptor over."""
        self.fd = fd
        self.size = os.fstat(fd).st_size
        self.map = mmap.mmap(fd, self.size)

    @classmethod
    def create(cls, size: int) -> SharedMemory:
        fd = os.memfd_create("cadence", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd)

    def release(self) -> None:
        """Gives the descriptor back; the memory too, once nothing in this process refers to it."""
        if self.fd < 0:
            return
        os.close(self.fd)
        self.fd = -1
        with contextlib.suppress(BufferError):
            self.map.close()

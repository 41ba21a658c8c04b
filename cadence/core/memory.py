"""Memory that is free, but still ours."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8  # of glibc's <malloc.h>
_MAPPED_BYTES = 128 * 1024


def give_back_memory() -> None:
    """Returns free pages to the operating system, where its allocator would keep them for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", int)  # glibc's; elsewhere there is nothing to do
    trim(0)  # lets other threads run


def map_large_blocks() -> None:
    """From now on large blocks go back to the operating system as soon as they are free. glibc soon takes them from its
    heaps, one for each of several threads, and what is free there stays as long as any small block lies after it."""
    if set_option := getattr(ctypes.CDLL(None), "mallopt", None):
        set_option(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        set_option(_M_ARENA_MAX, 1)

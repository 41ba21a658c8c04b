"""Memory that is free, but still ours."""

from __future__ import annotations

import ctypes


def give_back_memory() -> None:
    """Returns free pages to the operating system, where its allocator would keep them for later."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", int)  # glibc's; elsewhere there is nothing to do
    trim(0)  # lets other threads run

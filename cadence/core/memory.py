"""Memory that is free, but still ours."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def give_back_memory() -> None:
    """Returns free pages to the operating system, where its allocator would keep them for later."""
    _trim()(0)


@cache
def _trim() -> Callable[[int], int]:
    """glibc's; elsewhere there is nothing to do. The call lets other threads run."""
    return getattr(ctypes.CDLL(None), "malloc_trim", int)

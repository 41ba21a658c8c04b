"""Limits of a process for what may be slow, run out of memory or crash. It sets them itself."""

from __future__ import annotations

import os
import resource
from pathlib import Path


def confine(niceness: int) -> None:
    """The engine goes first; no core files, no files at all."""
    os.nice(niceness)
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_FSIZE, 0)


def limit_memory(more_bytes: int) -> None:
    """On top of what it has now; beyond, allocations fail."""
    if size := memory_bytes()[0]:
        limit(resource.RLIMIT_AS, size + more_bytes)


def limit(which: int, value: int) -> None:
    hard = resource.getrlimit(which)[1]
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(which, (value, value))


def memory_bytes() -> tuple[int, int]:
    """Of address space, and resident; (0, 0) where the system does not say."""
    try:
        pages = Path("/proc/self/statm").read_text().split()
    except OSError:
        return 0, 0
    size = resource.getpagesize()
    return int(pages[0]) * size, int(pages[1]) * size

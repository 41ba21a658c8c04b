"""A file's bytes in memory: read when touched, and given back to the system page by page."""

from __future__ import annotations

import mmap
from pathlib import Path

from cadence.core.errors import WeightsError


def map_file(path: Path) -> mmap.mmap:
    """Copy-on-write: nothing written to the mapping reaches the disk."""
    try:
        with open(path, "rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except FileNotFoundError:
        raise WeightsError(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: an empty file cannot be mapped
        raise WeightsError(f"{path}: cannot be read: {error}") from None


def release(mapped: mmap.mmap, start: int, nbytes: int) -> None:
    """The pages of these bytes leave memory; touched again, they are read again."""
    first = start // mmap.PAGESIZE * mmap.PAGESIZE
    if nbytes and hasattr(mmap, "MADV_DONTNEED"):
        mapped.madvise(mmap.MADV_DONTNEED, first, start + nbytes - first)

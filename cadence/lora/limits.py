"""What an adapter may be at most. Files are untrusted: these hold before anything of their size is read."""

from __future__ import annotations

from dataclasses import dataclass

MOST_TENSORS = 1 << 16  # of one adapter
MOST_NAME = 256  # characters of a tensor's name
MOST_HEADER_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class LoraLimits:
    num_slots: int = 1  # adapters that rows in flight may have among them
    max_rank: int = 16
    max_file_bytes: int = 16 << 30

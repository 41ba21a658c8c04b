"""What engines that share experts have in common, as who starts them makes it: memory that they compute together in,
and a bell for each, which wakes one that waits for requests. No torch here: it is the front that makes it.

The memory begins with what `kernels/cpu/ranks/collectives.c` keeps in it, whose first word says that all was aborted.
Its last page has one word: the newest round that some engine has begun (`rounds.py`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from cadence.distributed.shared_memory import SharedMemory

PAGE = 4096
_SLOTS = 2 << 20  # bytes of each rank's two slots
_STATE = 1 << 16  # bytes before them, at most, and PAGE for each rank


@dataclass(frozen=True, slots=True)
class GroupSeat:
    """Inherited descriptors of one engine, and which it is."""

    rank: int
    memory: int
    bells: tuple[int, ...]  # by rank

    @property
    def descriptors(self) -> tuple[int, ...]:
        return (self.memory, *self.bells)


class GroupMemory:
    def __init__(self, num_engines: int) -> None:
        self._memory = SharedMemory.create(_STATE + num_engines * (_SLOTS + PAGE) + PAGE)
        self._bells = tuple(os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK) for _ in range(num_engines))

    def seat(self, rank: int) -> GroupSeat:
        return GroupSeat(rank, self._memory.fd, self._bells)

    def abort(self) -> None:
        """An engine is gone: the others return from what they wait for, and are told."""
        self._memory.map[:8] = (1).to_bytes(8, "little")
        for bell in self._bells:
            os.eventfd_write(bell, 1)

    def release(self) -> None:
        """Engines that have inherited it keep it."""
        self._memory.release()
        for bell in self._bells:
            os.close(bell)

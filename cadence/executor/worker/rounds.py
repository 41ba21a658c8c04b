"""Forwards of engines that share experts. A round is one forward of every engine: in each layer of experts they meet.

An engine that has something to compute begins the next round and wakes the others; one that has nothing joins with a
forward of the dummy row. Where none begins a round, all wait for requests. Engines count rounds alike, so who sees that
a round was begun which it has not been in knows that others wait for it there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from typing import Protocol

from cadence.distributed.shared_memory import SharedMemory
from cadence.executor.worker.group_memory import PAGE, GroupSeat


class AnyRounds(Protocol):
    bell: int  # a descriptor that can be read when a round was begun; -1 = there is none
    done: int  # rounds that this engine was in

    @property
    def is_called(self) -> bool:
        """Others wait for this engine."""
        ...

    def clear_bell(self) -> None:
        """The bell is silent again."""
        ...


class NoRounds:
    """An engine by itself."""

    bell = -1
    done = 0
    is_called = False

    def clear_bell(self) -> None:
        """It never rings."""


NO_ROUNDS = NoRounds()


class Rounds:
    def __init__(self, seat: GroupSeat) -> None:
        self.rank, self.size = seat.rank, len(seat.bells)
        self.memory = SharedMemory(seat.memory)
        self.bell = seat.bells[seat.rank]
        self.done = 0
        self._others = [bell for rank, bell in enumerate(seat.bells) if rank != seat.rank]
        self._newest = ctypes.c_uint64.from_buffer(self.memory.map, self.memory.size - PAGE)  # that was begun

    @property
    def is_called(self) -> bool:
        return self._newest.value > self.done

    def clear_bell(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.bell)

    def begin(self) -> None:
        if not self.is_called:
            self._newest.value = self.done + 1  # others may write the same
            for bell in self._others:
                os.eventfd_write(bell, 1)

    def end(self) -> None:
        self.done += 1

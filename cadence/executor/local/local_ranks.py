"""Ranks as processes of this machine that share memory with their engine: commands to all of them go through one ring,
results of each come through a ring of its own. A process that is gone shows at once (pidfd)."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from cadence.core.errors import EngineDeadError
from cadence.distributed.ring import Ring
from cadence.distributed.shared_areas import SharedAreas
from cadence.executor.local.rank_processes import RANK_COMMAND, start_rank
from cadence.executor.worker.rank_loop import SILENCE_S
from cadence.executor.worker.wire import Seat, encode_plain
from cadence.process.child import Child, end_all
from cadence.process.ended import how_ended, why_silent
from cadence.process.messages import MessageReader

COMMAND_BYTES = 1 << 20  # rings
RESULT_BYTES = 1 << 20


@dataclass(slots=True)
class LocalRank:
    """One process, and the ring of its results."""

    child: Child
    pidfd: int
    ring: Ring
    beats: int = 0  # the last count seen
    beat_at: float = field(default_factory=time.monotonic)  # when it last changed

    def why_silent(self, now: float, limit_s: float) -> str:
        beats = self.ring.num_beats
        if beats != self.beats:
            self.beats, self.beat_at = beats, now
        return why_silent(self.child.name, self.child.pid, now - self.beat_at, limit_s)


class LocalRanks:
    """`Ranks`. When they are closed, so are all rings, and ranks that wait for each other wake up, too."""

    def __init__(
        self, seats: Sequence[Seat], command: Sequence[str] = RANK_COMMAND, silence_s: float = SILENCE_S
    ) -> None:
        self._seats = seats
        self._command = command
        self._silence_s = silence_s
        self._ring = Ring.create(COMMAND_BYTES, len(seats))
        self.commands = self._ring.writer()
        self._shared = SharedAreas.create(seats[0].mesh)
        self._ranks: list[LocalRank] = []
        self.results: list[MessageReader] = []

    @property
    def pids(self) -> list[int]:
        return [rank.child.pid for rank in self._ranks]

    def busy_seconds(self) -> list[float]:
        return [rank.ring.busy_s for rank in self._ranks]

    def start(self) -> None:
        for seat in self._seats:
            ring = Ring.create(RESULT_BYTES, 1)
            fds = (self._ring.fd, ring.fd, *self._shared.fds(seat.mesh))
            try:
                child = start_rank(seat.mesh.rank, encode_plain(seat), self._command, fds)
            except BaseException:
                ring.release()
                raise
            self._ranks.append(LocalRank(child, os.pidfd_open(child.pid), ring))
            self.results.append(ring.reader())

    def descriptors(self) -> list[int]:
        return [rank.pidfd for rank in self._ranks]

    def attend(self, descriptor: int) -> str:
        child = next(rank.child for rank in self._ranks if rank.pidfd == descriptor)
        return how_ended(child.name, child.wait())

    def look_after(self) -> str:
        now = time.monotonic()
        found = (rank.why_silent(now, self._silence_s) for rank in self._ranks)
        return next(filter(None, found), "")

    def stop(self) -> None:
        """Those that have read all that was sent leave."""
        self.close()

    def has_left(self, descriptor: int) -> bool:
        return True

    def close(self) -> None:
        for ring in (self._ring, *(rank.ring for rank in self._ranks)):
            ring.close()
        for area in self._shared.all():
            area.abort()

    def kill(self) -> None:
        end_all([rank.child for rank in self._ranks])

    def release(self) -> None:
        for rank in self._ranks:
            os.close(rank.pidfd)
            rank.ring.release()
        for shared in (self._ring, *self._shared.all()):
            shared.release()


def check_pidfd() -> None:
    if not hasattr(os, "pidfd_open"):
        raise EngineDeadError("workers in processes of their own need Linux")

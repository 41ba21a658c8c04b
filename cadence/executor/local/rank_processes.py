"""Processes of ranks; and those of one node, which join an engine over the network."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cadence.config.env import engine_environment
from cadence.executor.local.joining import Ticket, encode_joining
from cadence.process.child import Child, Launch, end_all, module_command
from cadence.process.ended import STOPPED_S, how_ended, is_stopped
from cadence.process.framing import framed

RANK_COMMAND = module_command("cadence.executor.worker_process")


def start_rank(rank: int, first: bytes, command: Sequence[str] = RANK_COMMAND, inherited: Sequence[int] = ()) -> Child:
    """first: the message that it begins with. inherited: descriptors, which are its arguments"""
    words = (*command, *map(str, inherited))
    child = Child.start(Launch(words, f"the worker of rank {rank}", engine_environment(), inherited))
    child.name = f"{child.name} (process {child.pid})"
    with contextlib.suppress(OSError):  # it is gone: the watch says so
        child.wire.sendall(framed(first))
    return child


@dataclass(slots=True)
class RankProcess:
    """One that gives this process no heartbeats."""

    child: Child
    stopped_since: float = 0.0  # 0 = it is not

    def death(self, now: float) -> str:
        """ "" = it lives, or was told to stop"""
        if (status := self.child.status) is not None:
            return how_ended(self.child.name, status) if status else ""
        if not is_stopped(self.child.pid):
            self.stopped_since = 0.0
            return ""
        self.stopped_since = self.stopped_since or now
        return f"{self.child.name} is stopped" if now - self.stopped_since > STOPPED_S else ""


class RankProcesses:
    """A `RankLauncher`. They end with the thread that starts them."""

    def __init__(self, ranks: Sequence[int], command: Sequence[str] = RANK_COMMAND) -> None:
        self._ranks = ranks
        self._command = command
        self._processes: list[RankProcess] = []

    def start(self, ticket: Ticket) -> None:
        for rank in self._ranks:
            first = encode_joining(replace(ticket, mesh=ticket.mesh.at(rank)))
            self._processes.append(RankProcess(start_rank(rank, first, self._command)))

    def death(self) -> str:
        now = time.monotonic()
        return next(filter(None, (process.death(now) for process in self._processes)), "")

    def statuses(self) -> list[int | None]:
        """By which they have ended; None = it runs."""
        return [process.child.status for process in self._processes]

    def end(self) -> None:
        end_all([process.child for process in self._processes])
        self._processes.clear()

"""The ranks of one node as processes of this machine, which join an engine over the network."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from cadence.config.env import engine_environment
from cadence.executor.joining import Ticket, encode_joining
from cadence.executor.worker_group import KILL_S, how_ended, is_stopped

RANK_COMMAND = (sys.executable, "-m", "cadence.executor.remote_rank")
STOPPED_S = 1.0  # that a process may be stopped


@dataclass(slots=True)
class RankProcess:
    rank: int
    process: subprocess.Popen[bytes]
    life: int  # our end of its pipe
    stopped_since: float = 0.0  # 0 = it is not

    @property
    def name(self) -> str:
        return f"the worker of rank {self.rank} (process {self.process.pid})"

    def death(self, now: float) -> str:
        """ "" = it lives, or was told to stop"""
        if (status := self.process.poll()) is not None:
            return how_ended(self.name, status) if status else ""
        if not is_stopped(self.process.pid):
            self.stopped_since = 0.0
            return ""
        self.stopped_since = self.stopped_since or now
        return f"{self.name} is stopped" if now - self.stopped_since > STOPPED_S else ""


class RankProcesses:
    """A `RankLauncher`. They end with the thread that starts them."""

    def __init__(self, ranks: Sequence[int], command: Sequence[str] = RANK_COMMAND) -> None:
        self._ranks = ranks
        self._command = command
        self._processes: list[RankProcess] = []

    def start(self, ticket: Ticket) -> None:
        for rank in self._ranks:
            self._processes.append(self._started(replace(ticket, mesh=ticket.mesh.at(rank))))

    def death(self) -> str:
        now = time.monotonic()
        return next(filter(None, (process.death(now) for process in self._processes)), "")

    def statuses(self) -> list[int | None]:
        """By which they have ended; None = it runs."""
        return [process.process.poll() for process in self._processes]

    def end(self) -> None:
        for process in self._processes:
            process.process.kill()  # ends also what is stopped
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel holds on to is left behind
                process.process.wait(KILL_S)
            os.close(process.life)
        self._processes.clear()

    def _started(self, ticket: Ticket) -> RankProcess:
        theirs, ours = os.pipe()
        try:
            process = subprocess.Popen(
                [*self._command, str(theirs)], stdin=subprocess.DEVNULL, pass_fds=(theirs,), env=engine_environment()
            )
        except BaseException:
            os.close(ours)
            raise
        finally:
            os.close(theirs)
        with contextlib.suppress(BrokenPipeError):  # it is gone, and will be seen to be
            os.write(ours, encode_joining(ticket))
        return RankProcess(ticket.mesh.rank, process, ours)

"""The processes of an executor's ranks: made, watched, and ended by a thread of their own.

A process that is gone shows at once (pidfd). One that is stopped or stuck gives no heartbeats, and they come also while
weights load and forwards run; since other work may keep a process from them for a while, silence alone ends a process
only after long, and at once where the system says that it is stopped.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from cadence.config.env import engine_environment
from cadence.core.errors import EngineDeadError
from cadence.distributed.ring import Ring, RingWriter
from cadence.distributed.shared_areas import SharedAreas
from cadence.executor.wire import Seat, encode_plain
from cadence.executor.worker_process import SILENCE_S
from cadence.process.messages import MessageReader

WORKER_COMMAND = (sys.executable, "-m", "cadence.executor.worker_process")
COMMAND_BYTES = 1 << 20  # rings
RESULT_BYTES = 1 << 20
TICK_S = 0.25  # how often heartbeats are looked at
STOPPED_S = 1.0  # without a heartbeat, of a process that is stopped
KILL_S = 5.0  # for a killed process to be gone
STOP_S = 3.0  # for workers told to stop, before they are killed


@dataclass(slots=True)
class WorkerHandle:
    """One rank's process, as its parent holds it."""

    rank: int
    process: subprocess.Popen[bytes]
    pidfd: int
    life: int  # our end of its pipe
    results: Ring
    beats: int = 0  # the last count seen
    beat_at: float = field(default_factory=time.monotonic)  # when it last changed

    @property
    def name(self) -> str:
        return f"the worker of rank {self.rank} (process {self.process.pid})"

    def silence(self, now: float) -> float:
        """Seconds without a heartbeat."""
        beats = self.results.num_beats
        if beats != self.beats:
            self.beats, self.beat_at = beats, now
        return now - self.beat_at

    def release(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # one that the kernel holds on to is left behind
            self.process.wait(KILL_S)
        os.close(self.pidfd)
        os.close(self.life)
        self.results.release()


class WorkerGroup:
    """`commands` goes to all ranks, each has its own ring of results. When a process dies, `death` says how, and all
    rings are closed: who waits at one wakes up, and so do ranks that wait for each other."""

    def __init__(
        self, seats: Sequence[Seat], command: Sequence[str] = WORKER_COMMAND, silence_s: float = SILENCE_S
    ) -> None:
        """Returns when all processes were made. Raises OSError where that cannot be."""
        self._seats = seats
        self._command = command
        self._silence_s = silence_s
        self.commands = Ring.create(COMMAND_BYTES, len(seats))
        self._shared = SharedAreas.create(seats[0].mesh)
        self.workers: list[WorkerHandle] = []
        self.death = ""  # why they cannot be used any more; "" = they can
        self._lock = threading.Lock()  # guards the end
        self._ended = False
        self._wake, self._waker = os.pipe()
        self._made = threading.Event()
        self._error: Exception | None = None
        # They end with the thread that made them: it is this one, which lives as long as they do.
        self._thread = threading.Thread(target=self._live, name="workers", daemon=True)
        self._thread.start()
        self._made.wait()
        if self._error is not None:
            self.end()
            raise self._error

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self.workers]

    def command_writer(self) -> RingWriter:
        return self.commands.writer()

    def result_readers(self) -> list[MessageReader]:
        return [worker.results.reader() for worker in self.workers]

    def busy_seconds(self) -> list[float]:
        return [worker.results.busy_s for worker in self.workers]

    def end(self) -> None:
        """Those that were told to stop have a moment; then all are killed. Everything is given back."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            os.write(self._waker, b"x")
            self._thread.join()
            for shared in (self.commands, *self._shared.all()):
                shared.release()
            os.close(self._wake)
            os.close(self._waker)

    def _live(self) -> None:
        try:
            for seat in self._seats:
                self.workers.append(self._start(seat))
        except Exception as error:
            self._error = error
            self.death = str(error)
        finally:
            self._made.set()
        if not self.death:
            self._watch()
        self._end_all()

    def _start(self, seat: Seat) -> WorkerHandle:
        results = Ring.create(RESULT_BYTES, 1)
        theirs, ours = os.pipe()
        try:
            fds = (theirs, self.commands.fd, results.fd, *self._shared.fds(seat.mesh))
            process = subprocess.Popen(
                [*self._command, *map(str, fds)], stdin=subprocess.DEVNULL, pass_fds=fds, env=engine_environment()
            )
        except BaseException:
            os.close(ours)
            results.release()
            raise
        finally:
            os.close(theirs)
        with contextlib.suppress(BrokenPipeError):  # it is gone: the watch says so
            os.write(ours, encode_plain(seat))
        return WorkerHandle(seat.mesh.rank, process, os.pidfd_open(process.pid), ours, results)

    def _watch(self) -> None:
        """Until a process is gone, stopped or stuck, or `end` is called."""
        poll = select.poll()
        for fd in (self._wake, *(worker.pidfd for worker in self.workers)):
            poll.register(fd, select.POLLIN)
        while not self.death:
            ready = {fd for fd, _ in poll.poll(TICK_S * 1000)}
            if self._wake in ready:
                self.death = "the workers were stopped"
                self._close_rings()  # those that have read all that was sent leave
                return self._await_exits(poll)
            now = time.monotonic()
            gone = [how_ended(worker.name, worker.process.wait()) for worker in self.workers if worker.pidfd in ready]
            silent = (_silent(worker, now, self._silence_s) for worker in self.workers)
            self.death = next(filter(None, (*gone, *silent)), "")
        self._close_rings()

    def _await_exits(self, poll: select.poll) -> None:
        poll.unregister(self._wake)
        left, ends = {worker.pidfd for worker in self.workers}, time.monotonic() + STOP_S
        while left and (now := time.monotonic()) < ends:
            for fd, _ in poll.poll((ends - now) * 1000):
                poll.unregister(fd)
                left.discard(fd)

    def _close_rings(self) -> None:
        self.commands.close()
        for area in self._shared.all():
            area.abort()
        for worker in self.workers:
            worker.results.close()

    def _end_all(self) -> None:
        for worker in self.workers:
            worker.process.kill()  # ends also what is stopped
        if not self._ended:  # who asks why may still read
            with contextlib.suppress(OSError):
                os.read(self._wake, 1)
        for worker in self.workers:
            worker.release()


def check_pidfd() -> None:
    if not hasattr(os, "pidfd_open"):
        raise EngineDeadError("workers in processes of their own need Linux")


def how_ended(name: str, status: int) -> str:
    """status: as `subprocess` has it"""
    if status >= 0:
        return f"{name} ended with status {status}"
    with contextlib.suppress(ValueError):
        return f"{name} was ended by {signal.Signals(-status).name}"
    return f"{name} was ended by signal {-status}"


def _silent(worker: WorkerHandle, now: float, silence_s: float) -> str:
    silence = worker.silence(now)
    if silence > silence_s:
        return f"{worker.name} gave no heartbeat for {silence_s:g} s"
    if silence > STOPPED_S and is_stopped(worker.process.pid):
        return f"{worker.name} is stopped"
    return ""


def is_stopped(pid: int) -> bool:
    """By a signal or a debugger."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] in "Tt"

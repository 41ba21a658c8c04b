"""Ranks that reach the engine over the network, from this machine or from others: waited for, watched, and ended by a
thread of their own.

A rank whose process is gone shows as the end of its connection; a machine that is gone, or cannot be reached, as data
that nobody acknowledges (`message_socket`). A process on this machine that is stopped is seen in /proc; one elsewhere
gives no heartbeats, and who started it there looks after it.
"""

from __future__ import annotations

import contextlib
import math
import os
import queue
import select
import socket
import threading
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from cadence.core.errors import EngineDeadError, RanksMissingError
from cadence.core.messages import LACKS_RANKS
from cadence.executor.joining import BUSY, JOIN_S, Hello, Ticket, decode_busy, encode_joining, host_key, welcomes
from cadence.executor.rank_desk import RankDesk
from cadence.executor.worker_group import STOP_S, STOPPED_S, is_stopped
from cadence.executor.worker_process import SILENCE_S
from cadence.process.message_socket import Address, MessageSocket, listen
from cadence.process.messages import ClosedError, MessageError, MessageReader

TICK_S = 0.2  # between heartbeats to the ranks, and between looks at theirs
EXIT_S = 0.5  # for who started a process to hear how it ended
DEATH_S = 2.0  # for a lost connection to become a cause of death


class RankLauncher(Protocol):
    """Starts ranks that will join, and ends them. All calls come from one thread, which lives as long as they do."""

    def start(self, ticket: Ticket) -> None:
        """ticket: as each rank needs it, but for its rank"""
        ...

    def death(self) -> str:
        """How one of those that it started has ended; "" = they run, as far as is known."""
        ...

    def end(self) -> None:
        """Kills them."""
        ...


@dataclass(slots=True)
class JoinedRank:
    """And what it has sent."""

    hello: Hello
    connection: MessageSocket
    inbox: queue.SimpleQueue[bytes | None] = field(default_factory=queue.SimpleQueue)  # None = no more comes
    is_over: bool = False
    busy_s: float = 0.0

    def take(self, message: bytes) -> None:
        if message[:1] == BUSY:
            self.busy_s = decode_busy(message[1:])
        else:
            self.inbox.put(message)

    def read(self, timeout_s: float = math.inf) -> bytes:
        if self.is_over:
            raise ClosedError("the rank is gone")
        try:
            message = self.inbox.get(timeout=None if timeout_s == math.inf else timeout_s)
        except queue.Empty:
            raise TimeoutError("nothing came from the rank") from None
        if message is None:
            self.is_over = True
            raise ClosedError("the rank is gone")
        return message


class RankHub:
    """A `RankGroup`."""

    def __init__(
        self,
        launcher: RankLauncher,
        ticket: Ticket,
        num_threads: int,
        join_s: float = JOIN_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """Returns when all ranks are there. ticket: port 0 = any. Raises OSError, EngineDeadError."""
        self._launcher = launcher
        self._num_threads = num_threads
        self._join_s = join_s
        self._silence_s = silence_s
        self.death = ""
        self.ranks: list[JoinedRank] = []
        self._lock = threading.Lock()  # guards the end
        self._ended = False
        self._is_over = threading.Event()  # `death` is set
        self._wake, self._waker = os.pipe()
        self._made = threading.Event()
        self._error: Exception | None = None
        try:
            self._listener = listen(ticket.address)
        except OSError as error:
            self._close_pipe()
            host, port = ticket.address
            raise EngineDeadError(f"cannot listen for ranks at {host}:{port}: {error.strerror or error}") from error
        self._ticket = _at(ticket, self._listener)
        # Processes end with the thread that made them: it is this one, which lives as long as they do.
        self._thread = threading.Thread(target=self._live, name="ranks", daemon=True)
        self._thread.start()
        self._made.wait()
        if self._error is not None:
            self.end()
            raise self._error

    @property
    def pids(self) -> list[int]:
        return [rank.hello.pid for rank in self.ranks]

    def command_writer(self) -> RankHub:
        return self

    def result_readers(self) -> list[MessageReader]:
        return list(self.ranks)

    def busy_seconds(self) -> list[float]:
        return [rank.busy_s for rank in self.ranks]

    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        """To all ranks."""
        try:
            for rank in self.ranks:
                rank.connection.write(message, timeout_s)
        except ClosedError:
            self._is_over.wait(DEATH_S)
            raise

    def end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            os.write(self._waker, b"x")
            self._thread.join()
            self._close_pipe()

    def _close_pipe(self) -> None:
        os.close(self._wake)
        os.close(self._waker)

    def _live(self) -> None:
        try:
            self._launcher.start(self._ticket)
            with RankDesk(self._listener, self._ticket) as desk:
                self._await_ranks(desk)
                self.ranks = [JoinedRank(*joined) for joined in desk.joined()]
            hellos = [rank.hello for rank in self.ranks]
            for rank, welcome in zip(self.ranks, welcomes(hellos, self._num_threads), strict=True):
                rank.connection.write(encode_joining(welcome), TICK_S)
        except Exception as error:
            self._error = error
            self._die(str(error))
        finally:
            self._made.set()
        if not self.death:
            self._watch()
        self._close_all()
        self._launcher.end()
        if not self._ended:  # who asks why may still read
            with contextlib.suppress(OSError):
                os.read(self._wake, 1)
        for rank in self.ranks:
            rank.connection.release()

    def _await_ranks(self, desk: RankDesk) -> None:
        ends = time.monotonic() + self._join_s
        while missing := desk.missing():
            if death := self._launcher.death():
                raise EngineDeadError(death)
            if time.monotonic() > ends:
                some = ", ".join(map(str, missing[:8]))
                raise RanksMissingError(f"{LACKS_RANKS} within {self._join_s:g} s; missing: {some}")
            desk.wait(TICK_S)

    def _die(self, why: str) -> None:
        self.death = self.death or why
        self._is_over.set()

    def _watch(self) -> None:
        """Until a rank is gone, stopped or stuck, or `end` is called."""
        poll, by_fd = select.poll(), {rank.connection.fd: rank for rank in self.ranks}
        for fd in (self._wake, *by_fd):
            poll.register(fd, select.POLLIN)
        beat_at = 0.0
        while not self.death:
            ready = {fd for fd, _ in poll.poll(TICK_S * 1000)}
            if self._wake in ready:
                return self._await_exits(poll, by_fd)
            for fd in ready:
                self._take(by_fd[fd])
            if (now := time.monotonic()) - beat_at > TICK_S:
                beat_at = now
                self._look_after(now)

    def _take(self, rank: JoinedRank) -> None:
        try:
            for message in rank.connection.arrived():
                rank.take(message)
        except (ClosedError, MessageError) as error:
            known = self._how_it_ended() if self._is_here(rank) else ""
            self._die(known or f"{rank.hello.name} is gone: {error}")

    def _look_after(self, now: float) -> None:
        for rank in self.ranks:
            rank.connection.beat()
            silence = now - rank.connection.heard_at
            if silence > self._silence_s:
                self._die(f"{rank.hello.name} gave no heartbeat for {self._silence_s:g} s")
            elif silence > STOPPED_S and self._is_here(rank) and is_stopped(rank.hello.pid):
                self._die(f"{rank.hello.name} is stopped")
        if death := self._launcher.death():
            self._die(death)

    def _is_here(self, rank: JoinedRank) -> bool:
        """On this machine."""
        return rank.hello.host == host_key(self._ticket.node)

    def _how_it_ended(self) -> str:
        ends = time.monotonic() + EXIT_S
        while not (death := self._launcher.death()) and time.monotonic() < ends:
            time.sleep(0.02)
        return death

    def _await_exits(self, poll: select.poll, by_fd: dict[int, JoinedRank]) -> None:
        """Of ranks that were told to stop."""
        self._die("the workers were stopped")
        poll.unregister(self._wake)
        ends = time.monotonic() + STOP_S
        while by_fd and (left := ends - time.monotonic()) > 0:
            for fd, _ in poll.poll(left * 1000):
                try:
                    by_fd[fd].connection.arrived()
                except (ClosedError, MessageError):
                    poll.unregister(fd)
                    del by_fd[fd]

    def _close_all(self) -> None:
        for rank in self.ranks:
            rank.connection.close()
            rank.inbox.put(None)


def _at(ticket: Ticket, listener: socket.socket) -> Ticket:
    """With the port that the system has chosen."""
    address: Address = (ticket.address[0], listener.getsockname()[1])
    return replace(ticket, address=address)

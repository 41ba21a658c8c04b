"""Ranks that reach the engine over the network, from this machine or from others.

A rank whose process is gone shows as the end of its connection; a machine that is gone, or cannot be reached, as data
that is not acknowledged (`message_socket`). A process on this machine that is stopped is seen in /proc; one elsewhere
gives no heartbeats, and who started it there looks after it.
"""

from __future__ import annotations

import math
import queue
import socket
import time
from dataclasses import dataclass, field, replace
from typing import Protocol

from cadence.core.contract.messages import LACKS_RANKS
from cadence.core.errors import EngineDeadError, RanksMissingError
from cadence.executor.local.joining import BUSY, JOIN_S, Hello, Ticket, decode_busy, encode_joining, host_key, welcomes
from cadence.executor.local.rank_group import TICK_S
from cadence.executor.network.rank_listener import RankListener
from cadence.executor.worker.rank_loop import SILENCE_S
from cadence.process.ended import why_silent
from cadence.process.message_socket import Address, MessageSocket, listen
from cadence.process.messages import ClosedError, MessageError

EXIT_S = 0.5  # for who started a process to hear how it ended


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


class Broadcast:
    """A `MessageWriter` to all ranks."""

    def __init__(self, ranks: list[JoinedRank]) -> None:
        self._ranks = ranks

    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        for rank in self._ranks:
            rank.connection.write(message, timeout_s)


class NetworkRanks:
    """`Ranks`."""

    def __init__(
        self,
        launcher: RankLauncher,
        ticket: Ticket,
        num_threads: int,
        join_s: float = JOIN_S,
        silence_s: float = SILENCE_S,
    ) -> None:
        """ticket: port 0 = any. Raises EngineDeadError."""
        self._launcher = launcher
        self._num_threads = num_threads
        self._join_s = join_s
        self._silence_s = silence_s
        self.results: list[JoinedRank] = []
        self.commands = Broadcast(self.results)
        try:
            self._listener = listen(ticket.address)
        except OSError as error:
            host, port = ticket.address
            raise EngineDeadError(f"cannot listen for ranks at {host}:{port}: {error.strerror or error}") from error
        self._ticket = _at(ticket, self._listener)
        self._host = host_key(ticket.node)

    @property
    def pids(self) -> list[int]:
        return [rank.hello.pid for rank in self.results]

    def busy_seconds(self) -> list[float]:
        return [rank.busy_s for rank in self.results]

    def start(self) -> None:
        with RankListener(self._listener, self._ticket) as listener:
            self._launcher.start(self._ticket)
            self._await_ranks(listener)
            self.results += [JoinedRank(hello, connection) for hello, connection in listener.joined()]
        hellos = [rank.hello for rank in self.results]
        for rank, welcome in zip(self.results, welcomes(hellos, self._num_threads), strict=True):
            rank.connection.write(encode_joining(welcome), TICK_S)

    def _await_ranks(self, listener: RankListener) -> None:
        ends = time.monotonic() + self._join_s
        while missing := listener.missing():
            if death := self._launcher.death():
                raise EngineDeadError(death)
            if time.monotonic() > ends:
                some = ", ".join(map(str, missing[:8]))
                raise RanksMissingError(f"{LACKS_RANKS} within {self._join_s:g} s; missing: {some}")
            listener.wait(TICK_S)

    def descriptors(self) -> list[int]:
        return [rank.connection.fd for rank in self.results]

    def attend(self, descriptor: int) -> str:
        rank = self._of(descriptor)
        try:
            for message in rank.connection.arrived():
                rank.take(message)
        except (ClosedError, MessageError) as error:
            known = self._how_it_ended() if self._pid_here(rank) else ""
            return known or f"{rank.hello.name} is gone: {error}"
        return ""

    def look_after(self) -> str:
        """Ranks are sent a heartbeat, too."""
        now, found = time.monotonic(), []
        for rank in self.results:
            rank.connection.beat()
            silence = now - rank.connection.heard_at
            found.append(why_silent(rank.hello.name, self._pid_here(rank), silence, self._silence_s))
        return next(filter(None, (*found, self._launcher.death())), "")

    def stop(self) -> None:
        """The message that stops them is the last that they read."""

    def has_left(self, descriptor: int) -> bool:
        try:
            self._of(descriptor).connection.arrived()
        except (ClosedError, MessageError):
            return True
        return False

    def close(self) -> None:
        for rank in self.results:
            rank.connection.close()
            rank.inbox.put(None)

    def kill(self) -> None:
        self._launcher.end()

    def release(self) -> None:
        for rank in self.results:
            rank.connection.release()

    def _of(self, descriptor: int) -> JoinedRank:
        return next(rank for rank in self.results if rank.connection.fd == descriptor)

    def _pid_here(self, rank: JoinedRank) -> int:
        """0 = it is on another machine"""
        return rank.hello.pid if rank.hello.host == self._host else 0

    def _how_it_ended(self) -> str:
        ends = time.monotonic() + EXIT_S
        while not (death := self._launcher.death()) and time.monotonic() < ends:
            time.sleep(0.02)
        return death


def _at(ticket: Ticket, listener: socket.socket) -> Ticket:
    """With the port that the system has chosen."""
    address: Address = (ticket.address[0], listener.getsockname()[1])
    return replace(ticket, address=address)

"""Where ranks join: a connection is read from once it has shown that it knows the secret, and refused with a sentence
where it cannot be one of the engine's ranks."""

from __future__ import annotations

import contextlib
import logging
import select
import socket
import threading
from types import TracebackType

import msgspec

from cadence.executor.local.joining import RANK, Hello, Ticket, Welcome, decode_hello, encode_joining, refusal
from cadence.process.handshake import RefusedError, accept
from cadence.process.message_socket import MessageSocket
from cadence.process.messages import ClosedError, MessageError

HELLO_S = 120.0  # for a rank that has connected to say what it is; it may have to compile first
MOST_UNKNOWN = 32  # connections that have not shown anything yet, at once

logger = logging.getLogger("cadence.executor")


class RankListener:
    """Takes the listening socket over, and closes it at its end: no rank joins later."""

    def __init__(self, listener: socket.socket, expected: Ticket) -> None:
        """expected: what the tickets of all ranks say, but for their rank"""
        self._listener = listener
        self._expected = expected
        self._lock = threading.Lock()  # guards _joined
        self._joined: dict[int, tuple[Hello, MessageSocket]] = {}
        self._unknown = threading.Semaphore(MOST_UNKNOWN)
        self._is_open = True

    def __enter__(self) -> RankListener:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        with self._lock:
            self._is_open = False
            if error is not None:
                for hello, connection in self._joined.values():
                    _refuse(connection, f"the engine stopped waiting: {error}", hello)

    def missing(self) -> list[int]:
        """Ranks."""
        with self._lock:
            return [rank for rank in range(self._expected.mesh.world_size) if rank not in self._joined]

    def joined(self) -> list[tuple[Hello, MessageSocket]]:
        """By rank."""
        with self._lock:
            return [self._joined[rank] for rank in range(self._expected.mesh.world_size)]

    def wait(self, seconds: float) -> None:
        """Admits those that come meanwhile, each in a thread of its own; those that wait are sent a heartbeat."""
        poll = select.poll()
        poll.register(self._listener.fileno(), select.POLLIN)
        if poll.poll(seconds * 1000):
            end, _ = self._listener.accept()
            if self._unknown.acquire(blocking=False):
                threading.Thread(target=self._admit, args=(end,), name="joining", daemon=True).start()
            else:
                end.close()
        with self._lock:
            for rank, (_, connection) in list(self._joined.items()):
                connection.beat()
                if _is_gone(connection):
                    connection.release()
                    del self._joined[rank]

    def _admit(self, end: socket.socket) -> None:
        try:
            connection = accept(end, self._expected.secret, RANK)
        except RefusedError as error:
            return logger.warning("a connection was refused: %s", error)
        except (OSError, MessageError, ClosedError, TimeoutError):
            return
        finally:
            self._unknown.release()
        try:
            self._seat(decode_hello(connection.read(HELLO_S)), connection)
        except (MessageError, ClosedError, TimeoutError, msgspec.MsgspecError) as error:
            logger.warning("a rank at %s could not join: %s", connection.peer_host, error)
            connection.release()

    def _seat(self, hello: Hello, connection: MessageSocket) -> None:
        rank = hello.mesh.rank
        with self._lock:
            why = refusal(hello, self._expected)
            if not why and rank in self._joined:
                other = self._joined[rank][0].host_name
                why = f"rank {rank} has joined already, from {other}: each node needs a node_rank of its own"
            if why or not self._is_open:
                return _refuse(connection, why or "the engine waits no longer", hello)
            self._joined[rank] = hello, connection
        logger.info("%s has joined", hello.name)


def _is_gone(connection: MessageSocket) -> bool:
    """Of a rank that waits, and so sends nothing but heartbeats."""
    try:
        connection.arrived()
    except (ClosedError, MessageError):
        return True
    return False


def _refuse(connection: MessageSocket, why: str, hello: Hello) -> None:
    logger.warning("%s cannot join: %s", hello.name, why)
    with contextlib.suppress(ClosedError, TimeoutError):
        connection.write(encode_joining(Welcome(why)), 1.0)
    connection.release()

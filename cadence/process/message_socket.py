"""A network connection that carries messages, never longer than they may be.

Heartbeats are empty frames; they are no messages. Nagle's delay is off, and a machine that does not acknowledge what
was sent within `LOST_MS` counts as gone: the system says so, however busy the processes are. IPv4 and IPv6.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time

from cadence.process.framing import READ_BYTES, Frames, framed
from cadence.process.messages import MOST_MESSAGE, ClosedError, MessageError

LOST_MS = 1500  # without an acknowledgement of what was sent
_BEAT = framed(b"")

Address = tuple[str, int]  # host, port


class MessageSocket:
    """One end. One thread reads; any thread writes."""

    def __init__(self, end: socket.socket, most: int = MOST_MESSAGE) -> None:
        """most: bytes of a message that is read"""
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_MS)
        self.frames = Frames(most)
        self.heard_at = time.monotonic()  # when anything last came
        self._socket = end
        self._lock = threading.Lock()  # a frame is written whole

    @property
    def fd(self) -> int:
        return self._socket.fileno()

    @property
    def own_host(self) -> str:
        """The address of this end, at which others reach this machine too."""
        return str(self._socket.getsockname()[0])

    @property
    def peer_host(self) -> str:
        return str(self._socket.getpeername()[0])

    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        if len(message) > MOST_MESSAGE:
            raise MessageError(f"a message of {len(message)} bytes; the most are {MOST_MESSAGE}")
        ends = time.monotonic() + timeout_s
        with self._lock:
            self._send(memoryview(framed(message)), ends)

    def beat(self) -> None:
        """This process lives. Where the other side is slow to read, or a message is on its way, nothing is
        sent."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            if self._is_ready(select.POLLOUT, 0):
                self._send(memoryview(_BEAT), time.monotonic() + 1.0)
        except (ClosedError, TimeoutError, ValueError):
            """Who reads notices."""
        finally:
            self._lock.release()

    def read(self, timeout_s: float = math.inf) -> bytes:
        """Takes no byte after the message: who detaches the descriptor afterwards finds them there."""
        ends = time.monotonic() + timeout_s
        while True:
            if (message := self._next()) is not None:
                return message
            if not self._is_ready(select.POLLIN, ends - time.monotonic()):
                raise TimeoutError("nothing came over the connection")
            self._receive(self.frames.num_missing)

    def arrived(self) -> list[bytes]:
        """The messages that are here, after the system said that there is something to read. Raises ClosedError."""
        self._receive(READ_BYTES)
        return [message for message in self.frames.take_all() if message]

    def detach(self) -> int:
        """-> the descriptor, which is the caller's now; nothing that was received may be left"""
        if len(self.frames):
            raise MessageError(f"{len(self.frames)} bytes came too early")
        descriptor: int = self._socket.detach()
        return descriptor

    def close(self) -> None:
        """Both sides are told; who waits wakes up."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the descriptor back. Nothing may be called afterwards."""
        self.close()
        self._socket.close()

    def _is_ready(self, event: int, within_s: float) -> bool:
        poll = select.poll()
        poll.register(self.fd, event)
        return bool(poll.poll(None if within_s == math.inf else max(within_s, 0) * 1000))

    def _send(self, data: memoryview, ends: float) -> None:
        sent = 0
        while sent < len(data):
            if not self._is_ready(select.POLLOUT, ends - time.monotonic()):
                if sent:
                    self.close()  # half a message is none
                raise TimeoutError("the other side does not read")
            try:
                sent += self._socket.send(data[sent:], socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
            except OSError as error:
                raise ClosedError(f"the connection is lost: {error.strerror or error}") from error

    def _receive(self, most: int) -> None:
        try:
            data = self._socket.recv(most, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        except OSError as error:
            raise ClosedError(f"the connection is lost: {error.strerror or error}") from error
        if not data:
            raise ClosedError("the connection was closed")
        self.heard_at = time.monotonic()
        self.frames.add(data)

    def _next(self) -> bytes | None:
        """None = it has not come in full"""
        message = self.frames.take()
        while message == b"":
            message = self.frames.take()
        return message


def listen(address: Address) -> socket.socket:
    """Raises OSError."""
    family = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0][0]
    return socket.create_server(address, family=family, backlog=128)

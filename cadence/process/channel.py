"""Messages over a stream socket, with descriptors. The two ends are made together (a socketpair), so there is no
connecting: an end that is gone is an end of file, in every state."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import threading
import time
from collections import deque

from cadence.process.framing import READ_BYTES, Frames, framed

MOST_DESCRIPTORS = 16  # that come with one read
NO_DESCRIPTOR = -1
_CLOSE_ON_EXEC = getattr(socket, "MSG_CMSG_CLOEXEC", 0)  # children do not inherit them


class Channel:
    """One end. Sends never block: what the socket does not take at once waits here. `send` may be called from any
    thread, everything else from one. Where it `takes_descriptors`, those that came lie in `descriptors`, in the order
    of the messages that brought one each; who takes one out owns it."""

    def __init__(self, end: socket.socket, takes_descriptors: bool = False) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = threading.Lock()  # guards _unsent and the order of bytes on the socket
        self._unsent: deque[tuple[memoryview, int]] = deque()  # bytes, and a descriptor to send with them
        self._frames = Frames()
        self.takes_descriptors = takes_descriptors
        self.descriptors: deque[int] = deque()
        self.bell = NO_DESCRIPTOR  # another that ends the wait of `receive` when it can be read

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, data: bytes, descriptor: int = NO_DESCRIPTOR) -> None:
        """A descriptor is this channel's from here on: it is closed here once it is sent. Raises OSError when the other
        end is gone."""
        with self._lock:
            self._unsent.append((memoryview(framed(data)), descriptor))
            self._flush()

    @property
    def is_congested(self) -> bool:
        """Whether the other end reads slower than this one writes."""
        return bool(self._unsent)

    def receive(self, wait_s: float) -> list[bytes]:
        """What has come, waiting at most `wait_s` for the first. Raises EOFError when the other end is gone."""
        if not self._poll(wait_s):
            return []
        try:
            data = self._read()
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from None
        if not data:
            raise EOFError("the other end is closed")
        self._frames.add(data)
        return self._frames.take_all()

    def receive_first(self, within_s: float) -> list[bytes]:
        """The first messages. Raises TimeoutError, EOFError."""
        ends = time.monotonic() + within_s
        while time.monotonic() < ends:
            if messages := self.receive(1.0):
                return messages
        raise TimeoutError("no options came")

    def _read(self) -> bytes:
        if not self.takes_descriptors:
            return self._socket.recv(READ_BYTES)
        data, descriptors, _, _ = socket.recv_fds(self._socket, READ_BYTES, MOST_DESCRIPTORS, _CLOSE_ON_EXEC)
        self.descriptors.extend(descriptors)
        return data

    def close(self, wait_s: float) -> None:
        """Gives what is unsent `wait_s` to leave."""
        ends = time.monotonic() + wait_s
        with contextlib.suppress(OSError):
            while self._unsent and time.monotonic() < ends:
                select.select([], [self._socket], [], 0.05)
                with self._lock:
                    self._flush()
        self._socket.close()
        for descriptor in (*self.descriptors, *(descriptor for _, descriptor in self._unsent)):
            if descriptor != NO_DESCRIPTOR:
                os.close(descriptor)
        self.descriptors.clear()
        self._unsent.clear()

    def flush(self) -> None:
        """For callers that wait themselves until the socket takes more."""
        with self._lock:
            self._flush()

    def _poll(self, wait_s: float) -> bool:
        """-> whether there is something to read"""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        if self.bell != NO_DESCRIPTOR:
            poll.register(self.bell, select.POLLIN)
        events = dict(poll.poll(wait_s * 1000)).get(self._socket.fileno(), 0)
        if events & select.POLLOUT:
            with self._lock, contextlib.suppress(OSError):  # a broken end is an end of file to the reader
                self._flush()
        return bool(events & ~select.POLLOUT)

    def _flush(self) -> None:
        while self._unsent:
            first, descriptor = self._unsent[0]
            try:
                sent = self._write(first, descriptor)
            except BlockingIOError:
                return
            if sent == len(first):
                self._unsent.popleft()
            else:
                self._unsent[0] = first[sent:], NO_DESCRIPTOR

    def _write(self, data: memoryview, descriptor: int) -> int:
        if descriptor == NO_DESCRIPTOR:
            return self._socket.send(data)
        sent = socket.send_fds(self._socket, [data], [descriptor])
        os.close(descriptor)
        return sent

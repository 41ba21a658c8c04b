"""Messages over a stream socket, each behind its length. The two ends are made together (a socketpair), so there is
no connecting: an end that is gone is an end of file, in every state."""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from collections import deque

HEADER = struct.Struct("<I")  # bytes that follow
READ_BYTES = 1 << 18


def framed(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


class Channel:
    """The engine's end. Sends never block: what the socket does not take at once waits here. `send` may be called from
    any thread, everything else from one."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(False)
        self._socket = end
        self._lock = threading.Lock()  # guards _unsent and the order of bytes on the socket
        self._unsent: deque[memoryview] = deque()
        self._received = bytearray()

    def send(self, data: bytes) -> None:
        """Raises OSError when the other end is gone."""
        with self._lock:
            self._unsent.append(memoryview(framed(data)))
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
            data = self._socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise EOFError(str(error)) from None
        if not data:
            raise EOFError("the other end is closed")
        self._received += data
        return self._take_messages()

    def close(self, wait_s: float) -> None:
        """Gives what is unsent `wait_s` to leave."""
        ends = time.monotonic() + wait_s
        with contextlib.suppress(OSError):
            while self._unsent and time.monotonic() < ends:
                select.select([], [self._socket], [], 0.05)
                with self._lock:
                    self._flush()
        self._socket.close()

    def _poll(self, wait_s: float) -> bool:
        """-> whether there is something to read"""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN | (select.POLLOUT if self._unsent else 0))
        events = dict(poll.poll(wait_s * 1000)).get(self._socket.fileno(), 0)
        if events & select.POLLOUT:
            with self._lock, contextlib.suppress(OSError):  # a broken end is an end of file to the reader
                self._flush()
        return bool(events & ~select.POLLOUT)

    def _flush(self) -> None:
        while self._unsent:
            first = self._unsent[0]
            try:
                sent = self._socket.send(first)
            except BlockingIOError:
                return
            if sent == len(first):
                self._unsent.popleft()
            else:
                self._unsent[0] = first[sent:]

    def _take_messages(self) -> list[bytes]:
        """The complete messages of what was received; the beginning of one stays."""
        messages, start, buffer = [], 0, self._received
        while len(buffer) - start >= HEADER.size:
            (length,) = HEADER.unpack_from(buffer, start)
            end = start + HEADER.size + length
            if len(buffer) < end:
                break
            messages.append(bytes(buffer[start + HEADER.size : end]))
            start = end
        del buffer[:start]
        return messages

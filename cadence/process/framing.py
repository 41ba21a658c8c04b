"""Messages over a stream: each follows its length, in four bytes."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

import msgspec

from cadence.process.messages import MessageError

if TYPE_CHECKING:
    import asyncio  # processes that start need not load it

HEADER = struct.Struct("<I")  # bytes that follow
READ_BYTES = 1 << 18  # that are taken from a stream at once
LONGEST = 2**32 - 1  # bytes of a message


def framed(data: bytes) -> bytes:
    return HEADER.pack(len(data)) + data


def packed_frame(message: Any) -> bytes:
    """A message that msgpack can carry as it is."""
    return framed(msgspec.msgpack.encode(message))


class Frames:
    """What has come of a stream: complete messages, and the beginning of one."""

    def __init__(self, most: int = LONGEST) -> None:
        """most: bytes of a message"""
        self.most = most
        self._data = bytearray()

    def __len__(self) -> int:
        """Bytes that were not taken."""
        return len(self._data)

    @property
    def num_missing(self) -> int:
        """Bytes that the next message lacks, as far as is known; they are no more than are read at once."""
        have = len(self._data)
        if have < HEADER.size:
            return HEADER.size - have
        (length,) = HEADER.unpack_from(self._data)
        return min(HEADER.size + int(length) - have, READ_BYTES)

    def add(self, data: bytes) -> None:
        self._data += data

    def take(self) -> bytes | None:
        """The next message; None = it has not come in full. Raises MessageError."""
        if len(self._data) < HEADER.size:
            return None
        (length,) = HEADER.unpack_from(self._data)
        if length > self.most:
            raise MessageError(f"a message of {length} bytes; the most are {self.most}")
        end = HEADER.size + length
        if len(self._data) < end:
            return None
        message = bytes(memoryview(self._data)[HEADER.size : end])
        del self._data[:end]
        return message

    def take_all(self) -> list[bytes]:
        messages = []
        while (message := self.take()) is not None:
            messages.append(message)
        return messages


def receive(wire: socket.socket) -> bytes:
    """Waits for a message; b"" when the other side has closed. Takes no byte after it."""
    frames = Frames()
    while (message := frames.take()) is None:
        data = wire.recv(frames.num_missing)
        if not data:
            return b""
        frames.add(data)
    return message


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    """Raises IncompleteReadError when the other side has closed."""
    (length,) = HEADER.unpack(await reader.readexactly(HEADER.size))
    return await reader.readexactly(length)

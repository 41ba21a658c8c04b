"""Messages from one process to several, through a ring of bytes in memory that they share.

The writer goes on until a reader lags by a ring's length. A message has any length: it travels in pieces, each
after a header (its length, whether more follow) and padded to 8 bytes. Positions count bytes since the beginning and
never return; each is written by one process alone. Every wait has a deadline, and closing the ring wakes all.
Lengths and positions come from other processes: what cannot be is an error, never a read beyond the ring.
"""

from __future__ import annotations

import math
import struct
import time

from cadence.distributed.shared_memory import SharedMemory
from cadence.distributed.words import Words, open_words
from cadence.process.messages import MOST_MESSAGE, ClosedError, MessageError

_SLICE_S = 0.05  # a sleeper looks this often whether the ring was closed just before it fell asleep
_MAGIC = 0x474E4952434E4443
_SHAPE = struct.Struct("<QQQ")  # magic, bytes of the ring, readers: at the beginning of the memory
_CLOSED, _BEATS, _BUSY, _WRITTEN, _READ = 64, 128, 160, 192, 256  # places of words; of reader i _READ + i * _APART
_APART = 64  # bytes: what different processes write lies on different cache lines
_PAGE = 4096
_HEADER = struct.Struct("<II")  # of a piece: bytes, and whether it is the last
_LAST, _MORE = 1, 2


class RingError(MessageError):
    """What lies in a ring cannot be."""


class RingClosedError(ClosedError):
    """The ring was closed, and nothing is left in it."""


class Ring:
    """One process's view of it. Who makes it hands `fd` to the others, who attach it."""

    def __init__(self, memory: SharedMemory, words: Words, capacity: int, num_readers: int) -> None:
        self.memory = memory
        self.words = words
        self.capacity = capacity
        self.num_readers = num_readers
        start = _data_start(num_readers)
        self.data = memoryview(memory.map)[start : start + capacity]

    @classmethod
    def create(cls, capacity: int, num_readers: int) -> Ring:
        if capacity < 64 or capacity % 8 or num_readers < 1:
            raise RingError(
                f"a ring of {capacity} bytes for {num_readers}: at least 64, a multiple of 8, for one or more"
            )
        memory = SharedMemory.create(_data_start(num_readers) + capacity)
        _SHAPE.pack_into(memory.map, 0, _MAGIC, capacity, num_readers)
        return cls(memory, open_words(memory), capacity, num_readers)

    @classmethod
    def attach(cls, fd: int) -> Ring:
        memory = SharedMemory(fd)
        magic, capacity, num_readers = _SHAPE.unpack_from(memory.map, 0)
        if magic != _MAGIC or _data_start(num_readers) + capacity != memory.size or capacity < 64 or capacity % 8:
            raise RingError(f"descriptor {fd} is no ring")
        return cls(memory, open_words(memory), capacity, num_readers)

    @property
    def fd(self) -> int:
        return self.memory.fd

    @property
    def largest_piece(self) -> int:
        """Bytes, so that a reader takes one while the writer makes the next."""
        return self.capacity // 2 - _HEADER.size

    def writer(self) -> RingWriter:
        return RingWriter(self)

    def reader(self, number: int = 0) -> RingReader:
        return RingReader(self, number)

    def read_place(self, reader: int) -> int:
        return _READ + reader * _APART

    @property
    def is_closed(self) -> bool:
        return self.words.load(_CLOSED) != 0

    @property
    def num_beats(self) -> int:
        return self.words.load(_BEATS)

    def beat(self) -> None:
        """The writer's process lives. One thread of it calls this."""
        self.words.store(_BEATS, self.words.load(_BEATS) + 1)

    @property
    def busy_s(self) -> float:
        """Seconds that the writer's process has computed."""
        return self.words.load(_BUSY) / 1e9

    def add_busy(self, seconds: float) -> None:
        """One thread of the writer's process calls this."""
        self.words.store(_BUSY, self.words.load(_BUSY) + int(seconds * 1e9))

    def close(self) -> None:
        """For everybody; those who wait wake up."""
        self.words.store(_CLOSED, 1)
        for place in (_WRITTEN, *map(self.read_place, range(self.num_readers))):
            self.words.wake(place)

    def release(self) -> None:
        """Gives this process's view back. Nothing may be called afterwards."""
        self.data.release()
        del self.words
        self.memory.release()

    def await_change(self, place: int, seen: int, ends: float) -> None:
        """ends: by time.monotonic, math.inf = never. Raises TimeoutError, RingClosedError."""
        while self.words.load(place) == seen:
            if self.is_closed:
                raise RingClosedError("the ring was closed")
            left = ends - time.monotonic()
            if left <= 0:
                raise TimeoutError("nothing happened in the ring")
            self.words.wait(place, seen, min(left, _SLICE_S))


class RingWriter:
    def __init__(self, ring: Ring) -> None:
        self._ring = ring
        self._at = ring.words.load(_WRITTEN)

    def add_busy(self, seconds: float) -> None:
        self._ring.add_busy(seconds)

    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        """Waits for slow readers. Raises TimeoutError (a message of which something was written closes the
        ring), RingClosedError."""
        if len(message) > MOST_MESSAGE:
            raise RingError(f"a message of {len(message)} bytes; the most are {MOST_MESSAGE}")
        ends, view, most = time.monotonic() + timeout_s, memoryview(message), self._ring.largest_piece
        try:
            for start in range(0, max(len(view), 1), most):
                self._write_piece(view[start : start + most], _LAST if start + most >= len(view) else _MORE, ends)
        except TimeoutError:
            if start:
                self._ring.close()
            raise

    def _write_piece(self, piece: memoryview, kind: int, ends: float) -> None:
        size = _padded(len(piece))
        self._await_room(size, ends)
        _put(self._ring, self._at, _HEADER.pack(len(piece), kind))
        _put(self._ring, self._at + _HEADER.size, piece)
        self._at += size
        self._ring.words.store(_WRITTEN, self._at)

    def _await_room(self, size: int, ends: float) -> None:
        ring = self._ring
        if ring.is_closed:
            raise RingClosedError("the ring was closed")
        for reader in range(ring.num_readers):
            place = ring.read_place(reader)
            while True:
                read = ring.words.load(place)
                if not self._at - ring.capacity <= read <= self._at:
                    raise RingError(f"reader {reader} is at {read}, the writer at {self._at}")
                if self._at + size - read <= ring.capacity:
                    break
                ring.await_change(place, read, ends)


class RingReader:
    def __init__(self, ring: Ring, number: int) -> None:
        if not 0 <= number < ring.num_readers:
            raise RingError(f"reader {number} of a ring for {ring.num_readers}")
        self._ring = ring
        self._place = ring.read_place(number)
        self._at = ring.words.load(self._place)
        self._pieces: list[bytes] = []  # of a message that has not come in full
        self._length = 0  # bytes of them

    def read(self, timeout_s: float = math.inf) -> bytes:
        """The next message. Raises TimeoutError, RingClosedError once what was written is read, RingError."""
        ends, last = time.monotonic() + timeout_s, False
        while not last:
            piece, last = self._read_piece(ends)
            self._pieces.append(piece)
            self._length += len(piece)
            if self._length > MOST_MESSAGE:
                raise RingError(f"a message of more than {MOST_MESSAGE} bytes")
        message = self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
        self._pieces, self._length = [], 0
        return message

    def _read_piece(self, ends: float) -> tuple[bytes, bool]:
        """-> (a piece, whether it is the last)"""
        ring = self._ring
        ring.await_change(_WRITTEN, self._at, ends)
        available = ring.words.load(_WRITTEN) - self._at
        if not _HEADER.size <= available <= ring.capacity:
            raise RingError(f"{available} bytes are said to lie in a ring of {ring.capacity}")
        length, kind = _HEADER.unpack(_get(ring, self._at, _HEADER.size))
        if length > ring.largest_piece or _padded(length) > available or kind not in (_LAST, _MORE):
            raise RingError(f"a piece of {length} bytes, kind {kind}, among {available}")
        piece = _get(ring, self._at + _HEADER.size, length)
        self._at += _padded(length)
        ring.words.store(self._place, self._at)
        return piece, kind == _LAST


def _data_start(num_readers: int) -> int:
    return -(-(_READ + num_readers * _APART) // _PAGE) * _PAGE


def _padded(length: int) -> int:
    """Bytes that a piece takes, with its header."""
    return _HEADER.size + -(-length // 8) * 8


def _put(ring: Ring, position: int, content: bytes | memoryview) -> None:
    at = position % ring.capacity
    first = min(len(content), ring.capacity - at)
    ring.data[at : at + first] = content[:first]
    ring.data[: len(content) - first] = content[first:]


def _get(ring: Ring, position: int, length: int) -> bytes:
    at = position % ring.capacity
    first = min(length, ring.capacity - at)
    return bytes(ring.data[at : at + first]) + bytes(ring.data[: length - first])

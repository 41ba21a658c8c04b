"""A ring brings every message to every reader, whole and in order, whatever their lengths and speeds."""

from __future__ import annotations

import hashlib
import math
import os
import random
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from cadence.distributed import ring as ring_module
from cadence.distributed.ring import Ring, RingClosedError, RingError
from cadence.distributed.shared_memory import SharedMemory
from cadence.distributed.words import CWords, PlainWords, open_words

pytestmark = pytest.mark.device

CAPACITY = 4096
DONE = b"done"


def start(work: Callable[[], bytes]) -> Callable[[], bytes]:
    """Does the work in a process of its own -> a function that waits for what it returned."""
    out, into = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.write(into, work())
        finally:
            os._exit(0)
    os.close(into)

    def finish() -> bytes:
        with os.fdopen(out, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return answer

    return finish


def read_all(ring: Ring, number: int, seed: int, slowness: float) -> bytes:
    """-> a digest of all messages up to the last"""
    rng, digest, reader = random.Random(seed), hashlib.sha256(), ring.reader(number)
    while (message := reader.read(120)) != DONE:
        digest.update(struct.pack("<Q", len(message)) + message)
        if rng.random() < slowness:
            time.sleep(rng.random() * 0.002)
    return digest.digest()


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 64), st.integers(0, 6 * CAPACITY)), max_size=40),
    slowness=st.lists(st.sampled_from([0.0, 0.1, 0.8]), min_size=1, max_size=3),
    plain=st.sets(st.integers(0, 3)),
    seed=st.integers(0, 2**32),
)
def test_every_reader_gets_every_message(sizes: list[int], slowness: list[float], plain: set[int], seed: int) -> None:
    """plain: processes that have no C library, the writer being the last number."""
    ring = Ring.create(CAPACITY, len(slowness))
    finishes = []
    for number, slow in enumerate(slowness):

        def work(number: int = number, slow: float = slow) -> bytes:
            view = Ring.attach(os.dup(ring.fd))
            if number in plain:
                view.words = PlainWords(view.memory)
            return read_all(view, number, seed, slow)

        finishes.append(start(work))
    if 3 in plain:
        ring.words = PlainWords(ring.memory)
    writer, wanted, rng = ring.writer(), hashlib.sha256(), random.Random(seed)
    for size in sizes:
        message = rng.randbytes(size)
        writer.write(message, 120)
        wanted.update(struct.pack("<Q", size) + message)
    writer.write(DONE, 120)
    assert [finish() for finish in finishes] == [wanted.digest()] * len(slowness)
    ring.release()


def test_there_is_a_compiler_here_so_waits_are_in_c() -> None:
    ring = Ring.create(CAPACITY, 1)
    assert isinstance(open_words(ring.memory), CWords)
    ring.release()


@pytest.mark.parametrize("words", [CWords, PlainWords])
def test_waits_have_deadlines(words: type) -> None:
    ring = Ring.create(CAPACITY, 1)
    if words is PlainWords:
        ring.words = PlainWords(ring.memory)
    reader, writer = ring.reader(), ring.writer()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        reader.read(0.2)
    assert time.monotonic() - began >= 0.2
    writer.write(bytes(CAPACITY // 2 - 8))
    writer.write(bytes(CAPACITY // 2 - 8))
    with pytest.raises(TimeoutError):
        writer.write(b"", 0.1)
    assert not ring.is_closed
    assert len(reader.read(0)) == CAPACITY // 2 - 8
    writer.write(b"there is room again", 60)
    assert len(reader.read(0)) == CAPACITY // 2 - 8
    with pytest.raises(TimeoutError):  # half of this fits: who reads on would take the rest of it for another message
        writer.write(bytes(CAPACITY), 0.1)
    assert ring.is_closed


def test_closing_wakes_readers_and_writers() -> None:
    """What was written is still read."""
    for side in ("reader", "writer"):
        ring = Ring.create(CAPACITY, 1)
        writer, reader = ring.writer(), ring.reader()
        raised = threading.Event()

        def wait(side: str = side, writer: ring_module.RingWriter = writer, reader: ring_module.RingReader = reader,
                 raised: threading.Event = raised) -> None:  # fmt: skip
            try:
                reader.read() if side == "reader" else writer.write(bytes(2 * CAPACITY))
            except RingClosedError:
                raised.set()

        thread = threading.Thread(target=wait)
        thread.start()
        time.sleep(0.1)
        ring.close()
        assert raised.wait(60)
        thread.join()
    ring = Ring.create(CAPACITY, 1)
    ring.writer().write(b"last words")
    ring.close()
    reader = ring.reader()
    assert reader.read(math.inf) == b"last words"
    with pytest.raises(RingClosedError):
        reader.read(math.inf)
    with pytest.raises(RingClosedError):
        ring.writer().write(b"more")


@pytest.mark.parametrize(
    ("written", "length", "kind"),
    [
        (8, 2**32 - 1, 1),  # beyond all memory
        (16, 4096, 1),  # beyond the ring
        (16, 9, 1),  # beyond what was written
        (2**40, 8, 1),  # more was written than the ring holds
        (4, 0, 1),  # less than a header
        (16, 8, 7),  # neither the last nor one of several
    ],
)
def test_lengths_that_lie_are_found(written: int, length: int, kind: int) -> None:
    ring = Ring.create(CAPACITY, 1)
    ring.data[:8] = struct.pack("<II", length, kind)
    ring.words.store(ring_module._WRITTEN, written)
    with pytest.raises(RingError):
        ring.reader().read(0)


def test_positions_that_lie_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring.create(CAPACITY, 1)
    ring.words.store(ring.read_place(0), 1 << 50)
    with pytest.raises(RingError, match="reader 0"):
        ring.writer().write(b"")
    other = Ring.create(CAPACITY, 1)
    monkeypatch.setattr(ring_module, "MOST_MESSAGE", 3 * CAPACITY)
    with pytest.raises(RingError, match="the most"):
        other.writer().write(bytes(3 * CAPACITY + 1))
    with pytest.raises(RingError, match="no ring"):
        Ring.attach(SharedMemory.create(8192).fd)


def test_nothing_is_left_when_it_is_released() -> None:
    before = set(os.listdir("/proc/self/fd"))
    maps = Path("/proc/self/maps").read_text().count("memfd:cadence")
    ring = Ring.create(CAPACITY, 1)
    ring.writer().write(b"something")
    assert ring.reader().read(0) == b"something"
    ring.release()
    assert set(os.listdir("/proc/self/fd")) == before
    assert Path("/proc/self/maps").read_text().count("memfd:cadence") == maps

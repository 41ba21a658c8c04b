"""What is taken from an event loop that is stuck, and what is not."""

from __future__ import annotations

import os
import socket
import threading
from typing import Any

import pytest

from cadence.engine.text.held_updates import StreamPosition
from cadence.entrypoints.server.http.uvicorn_private import AnswerGate, SentTail
from cadence.entrypoints.server.resume.hand_over import HandOver
from cadence.entrypoints.server.resume.suspects import Suspects
from cadence.entrypoints.server.resume.unfinished import (
    HandedOver,
    UnfinishedAnswer,
    decode,
    encode,
    read_file,
    write_file,
)


def answer(unsent: bytes) -> UnfinishedAnswer:
    position = StreamPosition(2**64 - 1, {0: 3, 1: -1}, True)
    return UnfinishedAnswer(b"POST", unsent, True, False, {"cadence.created": 7}, [position, None])


def test_what_travels_arrives() -> None:
    handed = [HandedOver(7, answer(b"\0\xff"))]
    assert decode(read_file(write_file(encode(handed)))) == handed


class Looks(HandOver):
    """Sees these answers, one after the other."""

    def __init__(self, *seen: UnfinishedAnswer | None) -> None:
        self._seen = list(seen)

    def _look(self, connection: Any) -> UnfinishedAnswer | None:
        return self._seen.pop(0)


@pytest.mark.parametrize(("second", "is_handed"), [(b"a", True), (b"ab", False)])
def test_a_connection_whose_loop_goes_on_meanwhile_is_not_handed_over(second: bytes, is_handed: bool) -> None:
    """And what the loop writes then does not get to the client in any case."""
    own, client = socket.socketpair()
    dead, other = socket.socketpair()
    other.close()
    with own, client, dead:
        connection: Any = type("Connection", (), {"descriptor": own.fileno()})
        handed = Looks(answer(b"a"), answer(second))._take(connection, dead.fileno())
        with pytest.raises(OSError):
            own.send(b"twice")
        assert len(handed) == is_handed
        for one in handed:
            os.write(one.descriptor, b"once")
            os.close(one.descriptor)
        assert client.recv(9) == (b"once" if is_handed else b"")


def test_the_request_that_a_thread_is_in_is_known() -> None:
    go_on, stuck = threading.Event(), threading.Event()
    mine, others = object(), object()

    def handle(scope: object) -> None:
        stuck.set()
        go_on.wait(60)

    thread = threading.Thread(target=handle, args=(mine,))
    thread.start()
    assert stuck.wait(60)
    suspects = Suspects(thread.ident or 0)
    go_on.set()
    thread.join()
    assert suspects.include_any([others, mine]) and not suspects.include_any([others])


class Wire:
    """A transport whose peer reads as much as is said."""

    def __init__(self) -> None:
        self.written = b""
        self.num_read = 0
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written) - self.num_read

    def is_closing(self) -> bool:
        return self.is_closed

    def close(self) -> None:
        self.is_closed = True


def test_what_has_not_left_is_known_as_far_as_it_is_kept() -> None:
    wire: Any = Wire()
    tail = SentTail(wire)
    for number in range(100):
        tail.write(b"%d " % number)
        wire.num_read = len(wire.written) - number % 3
        assert tail.unsent() == wire.written[wire.num_read :]
    wire.num_read = 0
    assert tail.unsent() is None
    wire.num_read = len(wire.written)
    tail.trim()
    assert tail.unsent() == b""
    tail.write(b"next")
    tail.trim()
    assert tail.unsent() == b"next"


def test_an_answer_that_was_not_caught_up_with_ends_with_what_is_said() -> None:
    wire: Any = Wire()
    cycle: Any = type("Cycle", (), {"transport": wire})()
    gate = AnswerGate(cycle)
    cycle.transport.write(b"known")
    gate.end(b"error")
    assert wire.written == b"5\r\nerror\r\n0\r\n\r\n" and wire.is_closed


def test_an_answer_goes_on_where_its_gate_opens() -> None:
    wire: Any = Wire()
    cycle: Any = type("Cycle", (), {"transport": wire})()
    gate = AnswerGate(cycle)
    cycle.transport.write(b"known")
    gate.open()
    cycle.transport.write(b"new")
    assert wire.written == b"new" and gate.is_open

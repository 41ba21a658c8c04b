"""Messages over sockets arrive whole and in order, never longer than allowed, from those alone who know the secret."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cadence.core.errors import ConfigError
from cadence.process.handshake import RefusedError, accept, dial, new_secret, read_secret
from cadence.process.message_socket import MessageSocket, listen
from cadence.process.messages import ClosedError, MessageError
from tests.helpers.cut_networks import Network, network

__all__ = ["network"]

SECRET = new_secret()
Ends = tuple[MessageSocket, MessageSocket]


@pytest.fixture
def ends() -> Iterator[Ends]:
    with listen(("127.0.0.1", 0)) as listener:
        one = MessageSocket(socket.create_connection(listener.getsockname()))
        other = MessageSocket(listener.accept()[0])
    yield one, other
    one.release()
    other.release()


def beside(work: Callable[[], Any]) -> Callable[[], Any]:
    """Runs it in a thread. -> a function that waits for it, and returns or raises what it did"""
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def result() -> Any:
        thread.join(60)
        if isinstance(found[0], BaseException):
            raise found[0]
        return found[0]

    return result


def test_messages_come_whole_and_in_order(ends: Ends) -> None:
    sent = [bytes([size % 251]) * size for size in (1, 5, 70_000, 3_000_000, 2, 262_144)]
    done = beside(lambda: [(ends[0].write(message), ends[0].beat()) for message in sent])
    assert [ends[1].read(60) for _ in sent] == sent
    done()


def test_all_that_has_arrived_is_taken_at_once(ends: Ends) -> None:
    for message in (b"a", b"bb", b"ccc"):
        ends[0].write(message)
    ends[0].beat()
    time.sleep(0.05)
    assert ends[1].arrived() == [b"a", b"bb", b"ccc"]


def test_heartbeats_are_heard_and_are_no_messages(ends: Ends) -> None:
    before = ends[1].heard_at
    ends[0].beat()
    with pytest.raises(TimeoutError):
        ends[1].read(0.1)
    assert ends[1].heard_at > before


def test_a_length_beyond_the_limit_is_an_error(ends: Ends) -> None:
    ends[1].frames.most = 100
    ends[0].write(b"x" * 101)
    with pytest.raises(MessageError, match="101 bytes; the most are 100"):
        ends[1].read(60)


def test_the_end_of_the_other_side_is_told_once_all_is_read(ends: Ends) -> None:
    ends[0].write(b"last")
    ends[0].close()
    assert ends[1].read(60) == b"last"
    with pytest.raises(ClosedError):
        ends[1].read(60)


def test_who_does_not_read_keeps_nobody_waiting_forever(ends: Ends) -> None:
    with pytest.raises(TimeoutError):
        ends[0].write(b"x" * (1 << 26), 0.2)
    with pytest.raises(ClosedError):  # half a message is none
        ends[0].write(b"x", 0.2)
    ends[0].beat()


def test_a_cable_that_is_cut_is_noticed(network: Network) -> None:
    """No end is closed: what was sent is not acknowledged."""
    with listen((network.here, 0)) as listener:
        there = MessageSocket(network.connect(listener.getsockname()[1]))
        here = MessageSocket(listener.accept()[0])
    there.write(b"hello")
    assert here.read(60) == b"hello"
    network.cut()
    for end in (here, there):
        end.beat()
    for end in (here, there):
        with pytest.raises(ClosedError):
            end.read(120)
        end.release()


def meeting(client: Callable[[tuple[str, int]], Any], secret: bytes = SECRET) -> tuple[Any, Any]:
    """-> what came of the side that listens, and of the client: a result or an error"""
    with listen(("127.0.0.1", 0)) as listener:
        served = beside(lambda: accept(listener.accept()[0], secret, b"x"))
        found: list[Any] = []
        for work in (lambda: client(listener.getsockname()), served):
            try:
                found.append(work())
            except Exception as error:
                found.append(error)
    return found[1], found[0]


def test_both_sides_know_the_secret() -> None:
    here, there = meeting(lambda address: dial(address, SECRET, b"x"))
    there.write(b"hello")
    assert here.read(60) == b"hello"
    here.release()
    there.release()


@pytest.mark.parametrize(("secret", "purpose"), [(new_secret(), b"x"), (SECRET, b"other")], ids=["secret", "purpose"])
def test_another_secret_or_purpose_is_refused_by_both(secret: bytes, purpose: bytes) -> None:
    here, there = meeting(lambda address: dial(address, secret, purpose))
    assert isinstance(here, RefusedError) and "127.0.0.1 does not know the secret" in str(here)
    assert isinstance(there, RefusedError) and "another secret" in str(there)


def test_what_was_overheard_is_of_no_use() -> None:
    """A recording of what a rank has said, played to the same engine."""
    heard: list[bytes] = []

    def overheard(address: tuple[str, int]) -> None:
        with listen(("127.0.0.1", 0)) as between:
            done = beside(lambda: dial(between.getsockname(), SECRET, b"x"))
            rank, engine = between.accept()[0], socket.create_connection(address)
            rank.sendall(engine.recv(1000))
            heard.append(rank.recv(1000))
            engine.sendall(heard[0])
            rank.sendall(engine.recv(1000))
            done().release()
            rank.close()
            engine.close()

    def played(address: tuple[str, int]) -> bytes:
        with socket.create_connection(address) as stranger:
            stranger.recv(1000)
            stranger.sendall(heard[0])
            return stranger.recv(1000)

    here, _ = meeting(overheard)
    assert isinstance(here, MessageSocket)
    here.release()
    here, there = meeting(played)
    assert isinstance(here, RefusedError) and there == struct.pack("<I", 1) + b"-"


@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\n\r\n", struct.pack("<I", 1 << 30), b"", b"\0" * 40],
    ids=["HTTP", "a length", "nothing", "zeros"],
)
def test_strangers_are_not_listened_to(said: bytes) -> None:
    def client(address: tuple[str, int]) -> None:
        with socket.create_connection(address) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            while stranger.recv(1000):
                pass

    here, _ = meeting(client)
    assert isinstance(here, (MessageError, ClosedError))


def test_what_listens_may_be_another_program() -> None:
    with listen(("127.0.0.1", 0)) as listener:
        done = beside(lambda: listener.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"))
        with pytest.raises(MessageError):
            dial(listener.getsockname(), SECRET, b"x")
        done()


def test_secrets_are_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(ConfigError, match=r"node_secret_file=.*No such file"):
        read_secret(str(file))
    file.write_text("short\n")
    with pytest.raises(ConfigError, match="5 bytes; a secret has at least 16"):
        read_secret(str(file))
    file.write_text("0123456789abcdef\n")
    assert read_secret(str(file)) == b"0123456789abcdef"

"""A server on the loopback interface that does what good ones do not, for one path each."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.media.pictures import picture

HOST = "pictures.test"  # its name, for a resolver that says so
STEP_S = 0.05  # between two bytes that trickle


class Web:
    """`answers`: path -> bytes of a whole answer, or what is done with the connection."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []  # heads of requests
        self.answers: dict[str, bytes | Callable[[socket.socket], None]] = {}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._threads: list[threading.Thread] = []

    def url(self, path: str, host: str = HOST) -> str:
        return f"http://{host}:{self.port}{path}"

    def resolve(self, host: str, port: int) -> list[str]:
        """All names lead here."""
        return ["127.0.0.1"]

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(connection,), daemon=True)
            thread.start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                if not (more := connection.recv(4096)):
                    return
                head += more
            self.asked.append(head)
            path = head.split(b" ")[1].decode().partition("?")[0]
            answer = self.answers.get(path, b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            if isinstance(answer, bytes):
                connection.sendall(answer)
            else:
                answer(connection)


@contextmanager
def web() -> Iterator[Web]:
    server = Web()
    server.answers |= {
        "/good.png": ok(picture()),
        "/chunked.png": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(picture()),
        "/hangs": lambda connection: time.sleep(5),
        "/hangs-after-head": lambda connection: _send_and_wait(connection, b"HTTP/1.1 200 OK\r\n\r\n"),
        "/trickles-head": lambda connection: _trickle(connection, b"HTTP/1.1 200 OK\r\nX: " + b"x" * 10_000),
        "/trickles": lambda connection: _trickle(connection, b"x" * 10_000, b"HTTP/1.1 200 OK\r\n\r\n"),
        "/endless": lambda connection: _endless(connection, b"HTTP/1.1 200 OK\r\n\r\n", b"x" * 65_536),
        "/endless-chunks": lambda connection: _endless(
            connection, b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b"x" * 65_536 + b"\r\n"
        ),
        "/endless-head": lambda connection: _endless(
            connection, b"HTTP/1.1 200 OK\r\n", b"X: " + b"x" * 60_000 + b"\r\n"
        ),
        "/claims-more": b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n" + picture(),
        "/claims-less": b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n" + picture(),
        "/gzip": ok(b"\x1f\x8b" + bytes(100), "Content-Encoding: gzip"),
        "/empty": ok(b""),
        "/html": ok(b"<html><script>alert(1)</script></html>", "Content-Type: image/png"),
        "/no-http": b"220 mail.test ESMTP\r\n",
        "/closes": lambda connection: None,
        "/500": b"HTTP/1.1 500 Oh\r\nContent-Length: 2\r\n\r\nno",
        "/401": b"HTTP/1.1 401 Who\r\nContent-Length: 0\r\n\r\n",
        "/to-good": moved("/good.png"),
        "/to-itself": moved("/to-itself"),
        "/to-file": moved("file:///etc/passwd"),
        "/to-data": moved("data:image/png;base64,AAAA"),
        "/to-ftp": moved("ftp://pictures.test/a"),
        "/to-other": moved("http://other.test/good.png"),
        "/to-loopback": moved("http://localhost/good.png"),
        "/to-metadata": moved("http://169.254.169.254/latest/meta-data"),
        "/to-nowhere": moved("http://"),
        "/without-location": b"HTTP/1.1 302 Found\r\nContent-Length: 0\r\n\r\n",
    }
    for number in range(6):
        server.answers[f"/hop{number}"] = moved(f"/hop{number - 1}" if number else "/good.png")
    thread = threading.Thread(target=server.serve, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.close()
        thread.join()


def ok(body: bytes, *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n{lines}\r\n".encode() + body


def moved(location: str) -> bytes:
    return f"HTTP/1.1 302 Found\r\nLocation: {location}\r\nContent-Length: 0\r\n\r\n".encode()


def chunked(body: bytes) -> bytes:
    parts = [body[at : at + 100] for at in range(0, len(body), 100)]
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def _send_and_wait(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    time.sleep(5)


def _trickle(connection: socket.socket, data: bytes, before: bytes = b"") -> None:
    connection.sendall(before)
    for byte in data:
        connection.sendall(bytes((byte,)))
        time.sleep(STEP_S)


def _endless(connection: socket.socket, before: bytes, data: bytes) -> None:
    connection.sendall(before)
    while True:
        connection.sendall(data)

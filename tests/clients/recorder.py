"""A proxy on loopback that writes down what clients send: the material of tests/server/test_client_bodies.py."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

SECRET = ("authorization", "x-api-key", "cookie")
HOP = ("transfer-encoding", "content-length", "connection", "host", "accept-encoding")
TIMEOUT_S = 300.0
MAX_TEXT = 4000  # characters of an answer


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def _forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        sent = {name: value for name, value in self.headers.items() if name.lower() not in HOP}
        with contextlib.closing(http.client.HTTPConnection(*self.server.target, timeout=TIMEOUT_S)) as connection:
            connection.request(self.command, self.path, body or None, sent)
            reply = connection.getresponse()
            self.send_response(reply.status)
            for name, value in reply.getheaders():
                if name.lower() not in HOP:
                    self.send_header(name, value)
            self.end_headers()
            said = b""
            with contextlib.suppress(ConnectionError):  # the client may leave before the end
                while piece := reply.read1(65536):
                    said += piece
                    self.wfile.write(piece)
                    self.wfile.flush()
            entry = {
                "request": f"{self.command} {self.path}",
                "headers": {name: value for name, value in sent.items() if name.lower() not in SECRET},
                "body": _readable(body),
                "status": reply.status,
                "ignored": reply.getheader("x-cadence-ignored"),
                "answer": said.decode(errors="replace")[:MAX_TEXT],
            }
            self.server.record.write(entry)

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_OPTIONS = _forward  # noqa: N815

    def log_message(self, *words: object) -> None:
        """The file is the log."""


class Record:
    """A file of requests, a line of JSON each, and the client that sends them at the moment."""

    def __init__(self, file: Path) -> None:
        self.client = ""
        self._file = file
        self._lock = threading.Lock()

    def write(self, entry: dict[str, Any]) -> None:
        with self._lock, self._file.open("a") as out:
            out.write(json.dumps({"client": self.client, **entry}) + "\n")


class _Server(ThreadingHTTPServer):
    def __init__(self, target: str, record: Record) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        parts = urlsplit(target)
        self.target = (parts.hostname or "", parts.port or 80)
        self.record = record


def _readable(body: bytes) -> Any:
    try:
        return json.loads(body)
    except ValueError:
        return body.decode(errors="replace")[:MAX_TEXT]


@contextlib.contextmanager
def recorded(target: str, record: Record) -> Iterator[str]:
    """The address under which `target` is reached while every request goes into `record`."""
    server = _Server(target, record)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)

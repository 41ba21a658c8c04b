"""Clients that do not read: they lose their place and their connection, and hold up nobody."""

from __future__ import annotations

import contextlib
import json
import resource
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from cadence.entrypoints.server.http.sockets.connection import BoundedHttpProtocol
from tests.server.fake_process import FakeProcess
from tests.server.helpers import RunningApp
from tests.server.ledger import read_counters
from tests.server.test_tls import certificate  # noqa: F401  (a fixture)

pytestmark = pytest.mark.warm

Serve = Callable[..., RunningApp]
LARGE: dict[str, Any] = {  # about 1 MB as a stream, 300 kB as JSON: several times what the buffers of these tests hold
    "prompt": "to be or not to be", "max_tokens": 900, "logprobs": 20, "ignore_eos": True, "stream": True,
}  # fmt: skip


def request(body: dict[str, Any], path: str = "/v1/completions", connection: str = "keep-alive") -> bytes:
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\nconnection: {connection}\r\n"
    return f"{head}content-length: {len(content)}\r\n\r\n".encode() + content


def small(num_bytes: int = 4096) -> socket.socket:
    """With a small window, so that it is soon noticed when it is not read from. Who reads needs a segment's."""
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, num_bytes)
    wire.settimeout(240)
    return wire


def connect(app: RunningApp) -> socket.socket:
    wire = small(65_536)
    wire.connect(("127.0.0.1", app.port))
    return wire


def shrink(app: RunningApp, count: int = 1) -> None:
    """Small buffers on the server's side, too."""
    until(lambda: len(app.connections()) == count)
    for connection in app.connections():
        there = connection.transport.get_extra_info("socket")
        there.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)


@contextlib.contextmanager
def mute_clients(server: FakeProcess, count: int, body: dict[str, Any] = LARGE) -> Iterator[list[socket.socket]]:
    """They ask and never read."""
    with contextlib.ExitStack() as stack:
        wires = [stack.enter_context(small()) for _ in range(count)]
        for wire in wires:
            wire.connect(server.address)
            wire.sendall(request(body))
        yield wires


def until(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def read_all(wire: socket.socket) -> bytes:
    content = b""
    with contextlib.suppress(OSError):
        while piece := wire.recv(2**20):
            content += piece
    return content


def counters(server: FakeProcess) -> dict[str, float]:
    with server.client() as client:
        return read_counters(client.get("/metrics").text)


def descriptors(server: FakeProcess) -> int:
    return len(list(Path(f"/proc/{server.process.pid}/fd").iterdir()))


def test_fifty_streams_that_nobody_reads(fake_model: Path) -> None:
    """Their places and descriptors come back, and those of the next fifty while the server drains."""
    with FakeProcess(fake_model, write_timeout=1.0, shutdown_timeout=0.0) as server:
        before = descriptors(server)
        with mute_clients(server, 50):
            server.wait_for(lambda client: read_counters(client.get("/metrics").text)["aborted"] == 50)
            until(lambda: descriptors(server) <= before)
            now = counters(server)
            assert (now["in_flight"], now["finished"], now["failed"]) == (0, 0, 0)
            with server.client() as client:
                assert client.post("/v1/completions", json={"prompt": "hello", "max_tokens": 3}).status_code == 200
        with mute_clients(server, 50):
            server.wait_for(lambda client: client.get("/load").json()["server_load"] == 50)
            server.signal()
            assert server.process.wait(240) == 0


def test_a_drain_waits_for_no_client_that_does_not_read(fake_model: Path) -> None:
    """Though it would wait an hour for requests, and such a client may take its time before."""
    with (
        FakeProcess(fake_model, write_timeout=3600.0, shutdown_timeout=3600.0) as server,
        mute_clients(server, 3),
    ):
        server.wait_for(lambda client: client.get("/load").json()["server_load"] == 3)
        server.signal()
        assert server.process.wait(240) == 0


@pytest.mark.parametrize("how", ["second signal", "shutdown timeout"])
def test_nobody_holds_up_the_end(fake_model: Path, how: str) -> None:
    """Neither clients that do not read nor an engine that does not stop."""
    seconds = 3600.0 if how == "second signal" else 0.5
    with (
        FakeProcess(fake_model, hangs=True, shutdown_timeout=seconds) as server,
        mute_clients(server, 5),
        mute_clients(server, 1, {**LARGE, "logprobs": None}) as (reading,),
    ):
        server.wait_for(lambda client: client.get("/load").json()["server_load"] >= 5)
        server.signal()
        if how == "second signal":
            server.wait_for(lambda client: client.get("/readyz").status_code == 503)
            server.signal()
        assert server.process.wait(240) == (how == "second signal")
        assert server.process.stdout is not None and "the last" in server.process.stdout.read()
        assert read_all(reading)


def test_who_reads_gets_an_error_event_at_the_second_signal(fake_model: Path) -> None:
    slow = {**LARGE, "logprobs": None, "n": 1}
    options: Any = {"shutdown_timeout": 3600.0}
    with (
        FakeProcess(fake_model, delay=0.05, **options) as server,
        mute_clients(server, 1, slow) as (reading,),
    ):
        assert reading.recv(4096).startswith(b"HTTP/1.1 200")
        server.signal()
        server.wait_for(lambda client: client.get("/readyz").status_code == 503)
        server.signal()
        answer = read_all(reading)
        assert b"engine_unavailable" in answer and b"[DONE]" not in answer and answer.endswith(b"0\r\n\r\n")
        assert server.process.wait(240) == 1


def test_a_third_signal_ends_the_process(fake_model: Path) -> None:
    with FakeProcess(fake_model, hangs=True) as server, mute_clients(server, 2):
        server.wait_for(lambda client: client.get("/load").json()["server_load"] == 2)
        server.signal()
        server.wait_for(lambda client: client.get("/readyz").status_code == 503)
        began = time.monotonic()
        server.signal()
        server.signal()
        while server.process.poll() is None and time.monotonic() - began < 240:
            server.process.send_signal(15)  # two signals at once may arrive as one
            time.sleep(0.05)
        assert server.process.wait(1) == 1


def test_more_connections_than_descriptors(fake_model: Path) -> None:
    """Ordinary requests are told to come again, health checks are answered, and nothing runs out."""
    server = FakeProcess(fake_model, api_key=["k"])
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (256, 256))
    with server, contextlib.ExitStack() as stack:
        idle = []
        for _ in range(230):
            wire = stack.enter_context(socket.create_connection(server.address))
            idle.append(wire)
        until(lambda: any(_is_closed(wire) for wire in idle))
        assert 192 <= descriptors(server) < 240  # a quarter is reserved, half of that for health checks
        idle[-1].close()
        with server.client() as client:
            until(lambda: _is_health_only(client))
        for wire in idle:
            wire.close()
        key = {"Authorization": "Bearer k"}
        server.wait_for(lambda client: client.get("/v1/models", headers=key).status_code == 200)


def _is_closed(wire: socket.socket) -> bool:
    wire.setblocking(False)
    try:
        return wire.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _is_health_only(client: Any) -> bool:
    """False where there is not even room for that, which passes: who is silent there is hung up on."""
    try:
        refused = client.post("/v1/completions", json=LARGE, headers={"Authorization": "Bearer k"})
        healthy = client.get("/livez")
    except httpx.TransportError:
        return False
    assert refused.status_code == 503 and int(refused.headers["retry-after"]) >= 1
    assert refused.headers["connection"] == "close" and "connections" in refused.json()["error"]["message"]
    return healthy.status_code == 200


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages"])
def test_a_connection_too_many(serve: Serve, path: str) -> None:
    app = serve(max_connections=2)
    with connect(app) as first, connect(app) as second, app.client() as third:
        for wire in (first, second):
            wire.sendall(b"GET /livez HTTP/1.1\r\nhost: h\r\n\r\n")
            assert wire.recv(4096).startswith(b"HTTP/1.1 200")
        refused = third.post(path, json={"prompt": "hello"})
        assert refused.status_code == 503 and refused.headers["retry-after"] == "1"
        assert third.get("/livez").status_code == third.get("/readyz").status_code == 200
        first.close()
        until(lambda: third.get("/v1/models").status_code == 200)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
@pytest.mark.parametrize("pipelined", [False, True], ids=["one", "pipelined"])
def test_who_does_not_read_is_cut_off(serve: Serve, stream: bool, pipelined: bool) -> None:
    """Whatever the answer is, also when another request waits after it."""
    app = serve(write_timeout=0.4)
    body = {**LARGE, "stream": stream, "n": 3}
    with connect(app) as wire:
        shrink(app)
        wire.sendall(request(body) + (request(body) if pipelined else b""))
        until(lambda: not app.connections())
        app.settle()
        assert app.state.admission.in_flight == 0
        assert b"[DONE]" not in read_all(wire)
    if stream:
        assert app.state.admission.aborted == 1 and app.state.admission.finished == 0


@pytest.mark.parametrize("tokens", [120, 900], ids=["below the high-water mark", "above"])
def test_an_answer_left_in_the_buffers_of_a_closed_connection_goes_with_it(serve: Serve, tokens: int) -> None:
    app = serve(write_timeout=0.4)
    with small() as wire:
        wire.connect(("127.0.0.1", app.port))
        shrink(app)
        wire.sendall(request({**LARGE, "stream": False, "max_tokens": tokens}, connection="close"))
        until(lambda: any(connection.transport.is_closing() for connection in app.connections()))
        until(lambda: not app.connections())


def test_what_counts_as_reading() -> None:
    """Per look: bytes at the socket, bytes of TLS above it, whether writing is paused -> seconds without progress."""
    looks: list[tuple[int, int, bool, float]] = [
        (0, 0, False, 0),
        (50_000, 0, False, 0),  # it fits the buffers
        (70_000, 0, True, 1),
        (70_000, 0, True, 2),
        (69_999, 0, True, 0),  # a byte left
        (69_999, 0, True, 1),
        (69_999, 30_000, True, 2),  # more came, none left
        (60_000, 60_000, True, 0),  # more came, some left
        (80_000, 39_999, True, 0),  # TLS handed its own down, and a byte left
        (80_000, 39_999, False, 1),  # TLS says it has room, the socket has none
        (10, 0, False, 0),
    ]
    http: Any = object.__new__(BoundedHttpProtocol)
    http._unsent, http._progress_at = (0, 0), 0.0
    for now, (below, above, paused, expected) in enumerate(looks):
        http._wire = SimpleNamespace(get_write_buffer_size=lambda below=below: below)
        http.transport = SimpleNamespace(get_write_buffer_size=lambda above=above: above, is_closing=lambda: False)
        http.flow = SimpleNamespace(write_paused=paused)
        assert http.stalled(float(now), max(expected, 0.5)) == (expected > 0), now
        assert now - http._progress_at == expected, now


@pytest.mark.wide  # a reader without a core for a while is one that does not read: the limit has to be far from that
def test_who_reads_slowly_is_not_cut_off(serve: Serve) -> None:
    app = serve(write_timeout=20.0)
    with connect(app) as wire:
        shrink(app)
        wire.sendall(request({**LARGE, "n": 8}))
        ends = time.monotonic() + 45.0  # more than one deadline, in which less is read than there is
        while time.monotonic() < ends:
            assert wire.recv(6_000)
            time.sleep(0.3)
        rest = b""
        while not rest.endswith(b"0\r\n\r\n"):
            piece = wire.recv(2**20)
            assert piece
            rest = rest[-10:] + piece
    app.settle()
    assert app.state.admission.finished == 1


def test_no_more_than_the_high_water_mark_waits_for_a_reader(serve: Serve) -> None:
    app = serve(write_timeout=0.0)
    with connect(app) as wire:
        shrink(app)
        wire.sendall(request(LARGE))
        until(lambda: any(connection.flow.write_paused for connection in app.connections()))
        time.sleep(0.3)
        (connection,) = app.connections()
        assert 0 < connection.transport.get_write_buffer_size() < 2.5 * 65_536
    until(lambda: not app.connections())


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("stream", [True, False], ids=["stream", "json"])
def test_the_same_over_tls(serve: Serve, certificate: tuple[Path, Path], stream: bool) -> None:  # noqa: F811
    key, cert = certificate
    app = serve(write_timeout=1.0, max_connections=3, ssl_keyfile=str(key), ssl_certfile=str(cert))
    context = ssl.create_default_context(cafile=str(cert))
    with connect(app) as plain, context.wrap_socket(plain, server_hostname="localhost") as wire:
        shrink(app)
        wire.sendall(request({**LARGE, "stream": stream, "n": 4}))
        for _ in range(8):
            assert wire.recv(16_000)
            time.sleep(0.05)
        assert app.connections()
        until(lambda: not app.connections())
        app.settle()
    with contextlib.ExitStack() as stack:  # connections are counted before their handshake
        for _ in range(3):
            stack.enter_context(connect(app))
        with connect(app) as plain, context.wrap_socket(plain, server_hostname="localhost") as wire:
            wire.sendall(b"GET /version HTTP/1.1\r\nhost: h\r\n\r\n")
            assert wire.recv(4096).startswith(b"HTTP/1.1 503")

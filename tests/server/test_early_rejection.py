"""Overload: requests are rejected before anything is read, cheaply, in the right shape, and the connection lives on."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.early_rejection import ArrivalPacer, EarlyRejection
from tests.server.helpers import RunningApp
from tests.server.test_limits_admission import SLOW, balanced, wait_for

Serve = Callable[..., RunningApp]
FULL: dict[str, Any] = {"delay": 0.01, "max_num_seqs": 1}


@contextmanager
def filled(app: RunningApp, **headers: str) -> Iterator[None]:
    """One runs and one waits, which is all there is room for."""
    with app.client(headers=headers) as client, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(client.post, "/v1/completions", json={**SLOW, "max_tokens": 60}) for _ in range(2)]
        wait_for(lambda: len(app.llm.started) == 2)
        yield
        assert [job.result().status_code for job in running] == [200, 200]
    app.settle()
    assert balanced(app.state.admission) and app.state.admission.arriving == 0


def post(path: str, body: bytes, *headers: str) -> bytes:
    lines = (f"POST {path} HTTP/1.1", "host: here", "content-type: application/json", *headers)
    return "\r\n".join((*lines, f"content-length: {len(body)}", "", "")).encode() + body


def answer(wire: socket.socket) -> tuple[int, bytes]:
    """Status and body of the next answer, which has a content-length."""
    reply = b""
    while b"\r\n\r\n" not in reply:
        reply = (reply + wire.recv(65536)).removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n")
    head, _, body = reply.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += wire.recv(65536)
    return int(head.split()[1]), body


def test_nothing_is_read_and_the_connection_lives_on(serve: Serve) -> None:
    app = serve(FULL, max_queued_requests=1)
    with filled(app), socket.create_connection(("127.0.0.1", app.port), timeout=240) as wire:
        for _ in range(3):
            wire.sendall(post("/v1/chat/completions", b"this is no JSON"))
            status, body = answer(wire)
            assert status == 429 and b'"rate_limit_exceeded"' in body
        wire.sendall(post("/v1/messages", b"{}"))
        status, body = answer(wire)
        assert status == 429 and b'{"type": "error", "error": {"type": "rate_limit_error"' in body
        wire.sendall(b"GET /livez HTTP/1.1\r\nhost: here\r\n\r\n")
        assert answer(wire)[0] == 200
        wire.sendall(post("/tokenize", b'{"prompt": "to be"}'))  # only what makes tokens is turned away
        assert answer(wire)[0] == 200
    assert (app.state.admission.refused, app.state.admission.accepted) == (4, 2)


@pytest.mark.parametrize("header", ["connection: close", "expect: 100-continue"])
def test_a_large_body_is_not_answered_with_a_reset(serve: Serve, header: str) -> None:
    app = serve(FULL, max_queued_requests=1)
    body = b'{"prompt": "' + b"x" * 3_000_000 + b'"}'
    with filled(app), socket.create_connection(("127.0.0.1", app.port), timeout=240) as wire:
        wire.sendall(post("/v1/completions", body, header))
        assert answer(wire)[0] == 429


def test_the_layers_around_still_count(serve: Serve) -> None:
    app = serve(
        FULL, max_queued_requests=1, api_key=["k"], enable_request_id_headers=True, allowed_origins=["http://a"]
    )
    key = {"Authorization": "Bearer k", "Origin": "http://a"}
    with filled(app, **key), app.client() as client:
        assert client.post("/v1/completions", json=SLOW).status_code == 401
        replies = [client.post("/v1/completions", json=SLOW, headers=key) for _ in range(3)]
        for reply in replies:
            assert reply.status_code == 429 and int(reply.headers["retry-after"]) >= 1
            assert reply.headers.get_list("access-control-allow-origin") == ["http://a"]
            assert len(reply.headers.get_list("x-request-id")) == 1
        assert len({reply.headers["x-request-id"] for reply in replies}) == 3


def test_one_comes_in_at_a_time_in_the_order_of_coming() -> None:
    async def scenario() -> list[tuple[int, int]]:
        pacer, turn, entered = ArrivalPacer(), 0, []

        async def visitor(number: int) -> None:
            await pacer.wait()
            entered.append((number, turn))

        visitors = [asyncio.ensure_future(visitor(number)) for number in range(6)]
        await asyncio.sleep(0)
        visitors[2].cancel()
        while len(entered) < 5:
            await asyncio.sleep(0)
            turn += 1
        return entered

    entered = asyncio.run(scenario())
    assert [number for number, _ in entered] == [0, 1, 3, 4, 5]
    turns = [turn for _, turn in entered]
    assert len(set(turns)) == len(turns)


def test_no_more_are_read_than_there_is_room_for() -> None:
    """Those that are let through count before they are read."""
    statuses: list[int] = []

    async def scenario() -> None:
        admission = AdmissionControl(max_requests=4, max_tokens=100, max_model_len=1000)
        admission.completions = 1
        read = []

        async def app(scope: Any, receive: Any, send: Any) -> None:
            read.append(scope)
            admission.completions += 1

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                statuses.append(message["status"])

        async def receive() -> Any:
            raise AssertionError("the body of a request that is turned away is not read")

        layer = EarlyRejection(app, admission)
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "http_version": "1.1"}
        await asyncio.gather(*(layer({**scope}, receive, send) for _ in range(10)))
        assert (len(read), admission.refused, admission.arriving) == (3, 7, 0)

    asyncio.run(scenario())
    assert statuses == [429] * 7

"""Limits at the door: bodies, headers, nesting, content types, and broken HTTP. What is refused has a proper body."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator

import httpx
import pytest

from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
JSON = {"content-type": "application/json"}


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve(max_body_bytes=10_000, max_header_bytes=4_000, max_header_count=20, max_json_depth=8)


def code_of(reply: httpx.Response) -> str:
    return str(reply.json()["error"]["reason"])


def test_bodies_up_to_the_limit(app: RunningApp) -> None:
    body = json.dumps({"prompt": "x" * (10_000 - 14)}).encode()
    assert len(body) == 10_000
    with app.client() as client:
        assert client.post("/tokenize", content=body, headers=JSON).status_code == 200
        reply = client.post("/tokenize", content=body + b" ", headers=JSON)
        assert reply.status_code == 413 and code_of(reply) == "request_too_large"
        assert "10000 bytes" in reply.json()["error"]["message"]


def test_chunked_bodies_count_too(app: RunningApp) -> None:
    def chunks(count: int) -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(count):
            yield b"x" * 1000
        yield b'"}'

    with app.client() as client:
        assert client.post("/tokenize", content=chunks(9), headers=JSON).status_code == 200
        assert client.post("/tokenize", content=chunks(30), headers=JSON).status_code == 413


def test_an_endless_body_is_cut_off(app: RunningApp) -> None:
    with socket.create_connection(("127.0.0.1", app.port), timeout=120) as wire:
        wire.sendall(b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                     b"Transfer-Encoding: chunked\r\n\r\n")  # fmt: skip
        sent = 0
        with pytest.raises(OSError):
            while sent < 100_000_000:
                wire.sendall(b"400\r\n" + b"x" * 1024 + b"\r\n")
                sent += 1024
    assert sent < 100_000_000


def test_declared_too_large_with_expect_is_refused_before_the_body(app: RunningApp) -> None:
    reply = raw(app, b"POST /tokenize HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\nExpect: 100-continue\r\n\r\n")
    assert reply.startswith(b"HTTP/1.1 413") and b"100 Continue" not in reply


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_types(app: RunningApp, kind: str) -> None:
    with app.client() as client:
        reply = client.post("/tokenize", content=b'{"prompt": "x"}', headers={"content-type": kind} if kind else {})
        assert reply.status_code == 415 and code_of(reply) == "unsupported_media_type"


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "APPLICATION/JSON", "application/vnd.api+json"])
def test_json_content_types(app: RunningApp, kind: str) -> None:
    with app.client() as client:
        assert client.post("/tokenize", content=b'{"prompt": "x"}', headers={"content-type": kind}).status_code == 200


def test_nesting(app: RunningApp) -> None:
    with app.client() as client:
        for depth, status in ((7, 200), (8, 400), (4000, 400)):
            value = b"[" * depth + b"]" * depth
            body = b'{"prompt": "[[[[[[[[[[[[", "tools": null, "chat_template_kwargs": {"a": %s}}' % value[1:-1]
            reply = client.post("/tokenize", content=body, headers=JSON)
            assert reply.status_code == status, (depth, reply.text)
        assert code_of(reply) == "too_deeply_nested"


@pytest.mark.parametrize(
    "body",
    [b"{", b"", b"nothing", b'{"prompt": "\xff"}', b'{"prompt": "\xed\xa0\x80"}', b'{"prompt": "\\ud83d"}',
     b'{"prompt": "\\ude00\\ud83d"}', b'{"prompt": "\\ud83d\\ud83d\\ude00"}', b"[]", b'"text"', b"NaN",
     b'{"prompt": ' + b"9" * 5000 + b"}", b'{"prompt": "x"} {}'],
)  # fmt: skip
def test_bad_json_is_400(app: RunningApp, body: bytes) -> None:
    with app.client() as client:
        reply = client.post("/tokenize", content=body, headers=JSON)
        assert reply.status_code == 400 and reply.json()["error"]["type"] == "invalid_request_error", reply.text


def test_headers(app: RunningApp) -> None:
    with app.client() as client:
        assert client.get("/livez", headers={"x-long": "x" * 3000}).status_code == 200
        reply = client.get("/livez", headers={"x-long": "x" * 5000})
        assert reply.status_code == 431 and code_of(reply) == "headers_too_large"
        reply = client.get("/livez", headers={f"x-{i}": "1" for i in range(30)})
        assert reply.status_code == 431 and "20 headers" in reply.json()["error"]["message"]
        assert client.get("/livez?" + "x" * 5000).status_code == 431


def test_a_head_that_never_ends_is_cut_off(app: RunningApp) -> None:
    for start in (b"GET /livez HTTP/1.1\r\nx: ", b"GET /"):
        reply = raw(app, start + b"a" * 20_000)
        assert reply.startswith(b"HTTP/1.1 431"), reply[:100]


def test_head_limits_start_anew_with_each_request(app: RunningApp) -> None:
    with app.client() as client:
        for _ in range(5):
            assert client.post("/tokenize", json={"prompt": "x" * 3000}).status_code == 200
            assert client.get("/livez", headers={"x-long": "x" * 2000}).status_code == 200


def test_what_is_not_http_gets_a_json_400(app: RunningApp) -> None:
    for line in (b"\x16\x03\x01 hello\r\n\r\n", b"GET\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: -4\r\n\r\n"):
        reply = raw(app, line)
        assert reply.startswith(b"HTTP/1.1 400") and b'"invalid_request_error"' in reply, reply
    with app.client() as client:
        assert client.get("/livez").status_code == 200


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /livez HTTP/1.1\r\nx: ", b"POST /tokenize HTTP/1.1\r\nhost: h\r\ncontent-length: 50\r\n\r\n{"],
    ids=["silence", "head", "body"],
)
def test_who_dribbles_is_cut_off(serve: Serve, begun: bytes) -> None:
    app = serve(read_timeout=0.3)
    began = time.monotonic()
    with socket.create_connection(("127.0.0.1", app.port), timeout=120) as wire:
        wire.sendall(begun)
        wire.settimeout(0.05)
        reply, open_ = b"", True
        while open_ and time.monotonic() - began < 120:
            try:
                if begun and not reply:
                    wire.sendall(b"a")
                chunk = wire.recv(65536)
                reply, open_ = reply + chunk, bool(chunk)
            except TimeoutError:
                pass
    assert reply.startswith(b"HTTP/1.1 408") and b"within the limit of 0.3 s" in reply
    assert time.monotonic() - began > 0.25


def test_a_slow_answer_and_an_idle_connection_are_not_dribbling(serve: Serve) -> None:
    app = serve({"delay": 0.08}, read_timeout=1.5)
    with app.client() as client:
        body = {"prompt": "to be or not", "max_tokens": 25, "ignore_eos": True}
        assert client.post("/v1/completions", json=body).status_code == 200  # takes two seconds
        time.sleep(2.0)
        assert client.get("/livez").status_code == 200


def raw(app: RunningApp, content: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", app.port), timeout=120) as wire:
        wire.sendall(content)
        reply = b""
        while chunk := wire.recv(65536):
            reply += chunk
            if b"\r\n\r\n{" in reply and reply.endswith(b"}"):
                break
        return reply

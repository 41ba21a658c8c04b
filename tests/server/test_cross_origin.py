"""What browsers and proxies meet: preflights, origins, a prefix of the path; and layers of the user's own."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable

import httpx
import pytest
from openai import AuthenticationError, OpenAI
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from cadence.entrypoints.server.server import QuietPaths
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
PAGE = "https://page.example"
CHAT = "/v1/chat/completions"


def preflight(client: httpx.Client, origin: str = PAGE, method: str = "POST", headers: str = "") -> httpx.Response:
    """As a browser sends it: no key, no body."""
    ask = {"Origin": origin, "Access-Control-Request-Method": method}
    return client.options(CHAT, headers=ask | ({"Access-Control-Request-Headers": headers} if headers else {}))


def test_a_preflight_needs_no_key(serve: Serve) -> None:
    with serve(allowed_origins=[PAGE], api_key=["k"]).client() as client:
        reply = preflight(client, headers="authorization,content-type,x-stainless-os")
        assert reply.status_code == 200
        assert reply.headers["access-control-allow-origin"] == PAGE
        assert "POST" in reply.headers["access-control-allow-methods"]
        assert {"authorization", "x-stainless-os"} <= set(reply.headers["access-control-allow-headers"].split(","))
        assert "access-control-allow-credentials" not in reply.headers
        asked = client.post(CHAT, headers={"Origin": PAGE, "Authorization": "Bearer k"}, json={})
        assert asked.status_code == 400 and asked.headers["access-control-allow-origin"] == PAGE
        assert "x-cadence-ignored" in asked.headers["access-control-expose-headers"].lower()


def test_options_without_origins_needs_no_key_either(serve: Serve) -> None:
    with serve(api_key=["k"]).client() as client:
        reply = client.options(CHAT)
        assert reply.status_code == 405 and "access-control-allow-origin" not in preflight(client).headers


def test_other_origins_methods_and_headers_stay_out(serve: Serve) -> None:
    only = {"allowed_methods": ["GET"], "allowed_headers": ["content-type"]}
    with serve(allowed_origins=[PAGE, "https://two.example"], **only).client() as client:
        assert preflight(client, "https://two.example", "GET").status_code == 200
        for refused in (
            preflight(client, "https://evil.example", "GET"),
            preflight(client, method="POST"),
            preflight(client, method="GET", headers="authorization"),
        ):
            assert refused.status_code == 400
        assert "access-control-allow-origin" not in preflight(client, "https://evil.example", "GET").headers
        assert (
            "access-control-allow-origin" not in client.get("/ping", headers={"Origin": "https://evil.example"}).headers
        )


def test_every_origin_and_credentials(serve: Serve) -> None:
    with serve(allowed_origins=["*"]).client() as client:
        assert preflight(client).headers["access-control-allow-origin"] == "*"
        assert client.get("/ping", headers={"Origin": PAGE}).headers["access-control-allow-origin"] == "*"
    with serve(allowed_origins=["*"], allow_credentials=True).client() as client:
        reply = preflight(client)
        assert reply.headers["access-control-allow-origin"] == PAGE  # a star would not do beside credentials
        assert reply.headers["access-control-allow-credentials"] == "true"


@pytest.mark.parametrize("written", ["/llm", "llm", "/llm/"])
def test_root_path_taken_off_or_left_on(serve: Serve, written: str) -> None:
    app = serve(root_path=written, api_key=["one", "two"], max_header_bytes=4096)
    for base in ("/v1", "/llm/v1"):
        for key in ("one", "two"):
            client = OpenAI(base_url=app.url + base, api_key=key, max_retries=0)
            assert client.chat.completions.create(model="fake", messages=[{"role": "user", "content": "hi"}]).choices
        with pytest.raises(AuthenticationError):
            OpenAI(base_url=app.url + base, api_key="three", max_retries=0).models.list()
    with app.client() as client:
        for path in ("/metrics", "/llm/metrics", "/livez", "/llm/livez"):
            assert client.get(path).status_code == 200
        assert client.get("/llm/llm/livez").status_code == client.get("/other/livez").status_code == 401
        schema = client.get("/llm/openapi.json", headers={"Authorization": "Bearer one"}).json()
        assert schema["servers"] == [{"url": "/llm"}]
        refused = client.post("/llm/v1/messages", json={}, headers={"x-api-key": "three"}).json()
        assert refused["error"]["type"] == "authentication_error"
        large = client.post("/llm/v1/messages", json={}, headers={"x": "y" * 5000})
        assert large.status_code == 431 and large.json()["type"] == "error"  # Anthropic's shape below its paths


def test_an_error_in_a_stream_has_the_shape_of_its_path(serve: Serve) -> None:
    app = serve({"delay": 0.01}, root_path="/llm")
    body = {"max_tokens": 500, "messages": [{"role": "user", "content": "hi"}], "stream": True}
    with app.client() as client, client.stream("POST", "/llm/v1/messages", json=body) as reply:
        lines = reply.iter_lines()
        next(line for line in lines if "delta" in line)
        app.do(app.llm.die)
        last = [line for line in lines if line.startswith("data: ")][-1]
    assert json.loads(last.removeprefix("data: "))["type"] == "error"  # Anthropic's shape


class Stamp:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def stamped(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (b"x-stamp", b"class")]  # type: ignore[misc]
            await send(message)

        await self._app(scope, receive, stamped)  # type: ignore[arg-type]


async def stamp(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
    response = await call_next(request)
    response.headers["x-word"] = "coroutine"
    return response


def test_middleware_of_the_users_own(serve: Serve) -> None:
    names = [f"{__name__}.Stamp", f"{__name__}.stamp"]
    with serve(middleware=names).client() as client:
        for path, status in (("/ping", 200), ("/v1/nothing", 404)):
            reply = client.get(path)
            assert reply.status_code == status
            assert (reply.headers["x-stamp"], reply.headers["x-word"]) == ("class", "coroutine")


def test_a_stream_behind_middleware_that_holds_its_head_back(serve: Serve) -> None:
    with serve(middleware=[f"{__name__}.stamp"]).client() as client:
        body = {"prompt": "hi", "max_tokens": 40, "stream": True, "ignore_eos": True}
        for _ in range(5):
            reply = client.post("/v1/completions", json=body)
            assert reply.status_code == 200 and reply.headers["x-word"] == "coroutine"
            assert reply.text.count("data: {") >= 40 and reply.text.endswith("data: [DONE]\n\n")


@pytest.mark.parametrize("name", ["nothing.here", "os.nothing", "os.sep", "word", "os.getpid"])
def test_middleware_that_is_none(serve: Serve, name: str) -> None:
    with pytest.raises(ConfigError, match="middleware="):
        serve(middleware=[name])


def test_stream_interval_is_the_servers_unless_the_request_says(serve: Serve) -> None:
    app = serve(stream_interval=4)
    body = {"prompt": "hi", "max_tokens": 12, "stream": True, "ignore_eos": True}
    with app.client() as client:
        texts = [client.post("/v1/completions", json=body | more).text for more in ({}, {"stream_interval": 2})]
    assert [text.count("data: {") for text in texts] == [4, 7]  # the first token is always told of at once
    assert app.llm.default_sampling == {}  # the engine's stay as they are
    with pytest.raises(ConfigError, match="stream_interval=0"):
        ServeOptions(stream_interval=0)


def test_paths_without_access_lines() -> None:
    quiet = QuietPaths(["/health", "/metrics"])

    def line(path: str) -> logging.LogRecord:
        arguments = ("1.2.3.4:5", "GET", path, "1.1", 200)
        return logging.LogRecord("uvicorn.access", 20, "", 0, '%s - "%s %s HTTP/%s" %d', arguments, None)

    assert not quiet.filter(line("/health")) and not quiet.filter(line("/metrics?a=b"))
    assert quiet.filter(line("/healthy")) and quiet.filter(line("/v1/models"))

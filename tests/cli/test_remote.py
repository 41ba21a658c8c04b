"""The HTTP and event decoding under `bench serve` and `chat --url`: any cut of the bytes gives the same."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
from collections.abc import Callable
from typing import Any

import pytest

from cadence.entrypoints.cli.main import main
from cadence.entrypoints.cli.remote.client import Remote, RemoteError
from cadence.entrypoints.cli.remote.wire import EventDecoder, ResponseDecoder, WireError
from tests.cli.scripted_server import ScriptedServer, running
from tests.server.helpers import RunningApp

CHUNKED = (
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nX: y\r\n\r\n"
    b"5;note=1\r\nhello\r\nA\r\n\r\n\r\n world\r\n0\r\nTrailer: z\r\n\r\n"
)
PLAIN = b"HTTP/1.1 404 Not Found\r\ncontent-length: 5\r\n\r\nhello"


def decode(decoder: ResponseDecoder, data: bytes, cuts: list[int]) -> bytes:
    edges = [0, *sorted(cuts), len(data)]
    return b"".join(decoder.feed(data[low:high]) for low, high in itertools.pairwise(edges))


@pytest.mark.parametrize("data", [CHUNKED, PLAIN])
def test_any_cut_of_an_answer_decodes_alike(data: bytes) -> None:
    dice = random.Random(0)
    cuts = [[place] for place in range(len(data))] + [dice.sample(range(len(data)), 9) for _ in range(200)]
    for cut in [[], list(range(len(data))), *cuts]:
        decoder = ResponseDecoder()
        body = decode(decoder, data, cut)
        assert body == (b"hello\r\n\r\n world"[:5] + b"\r\n\r\n world" if data is CHUNKED else b"hello")
        assert decoder.done and decoder.keep_alive and decoder.status == (200 if data is CHUNKED else 404)


def test_an_answer_without_a_length_ends_with_the_connection() -> None:
    decoder = ResponseDecoder()
    assert decoder.feed(b"HTTP/1.1 200 OK\r\n\r\nabc") == b"abc" and not decoder.done
    assert decoder.feed(b"def") == b"def"
    decoder.close()
    assert decoder.done and not decoder.keep_alive


@pytest.mark.parametrize(
    "data",
    [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"],
)
def test_an_answer_cut_short_is_an_error(data: bytes) -> None:
    decoder = ResponseDecoder()
    decoder.feed(data)
    with pytest.raises(WireError, match="closed the connection"):
        decoder.close()


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\n",
    ],
)
def test_what_is_not_http_is_an_error(data: bytes) -> None:
    with pytest.raises(WireError):
        ResponseDecoder().feed(data)


def test_connection_close_is_heeded() -> None:
    decoder = ResponseDecoder()
    decoder.feed(b"HTTP/1.1 204 No Content\r\nConnection: Close\r\n\r\n")
    assert decoder.done and not decoder.keep_alive


def test_any_cut_of_events_decodes_alike() -> None:
    for data in (
        b": hello\n\ndata: one\n\nevent: x\ndata:two\ndata:  three\n\ndata: four\n\ndata: unfinished",
        b": hello\r\n\r\ndata: one\r\n\r\nevent: x\r\ndata:two\r\ndata:  three\r\n\r\ndata: four\r\n\r\ndata: unfin",
    ):
        for size in range(1, len(data) + 1):
            decoder = EventDecoder()
            pieces = [data[at : at + size] for at in range(0, len(data), size)]
            events = [event for piece in pieces for event in decoder.feed(piece)]
            assert events == [b"one", b"two\nthree", b"four"]


def ask(server: ScriptedServer, body: dict[str, Any]) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []

    async def run() -> None:
        async with Remote.at(server.url) as remote:
            await remote.stream("/v1/completions", json.dumps(body).encode(), lambda event, now: events.append(event))

    asyncio.run(run())
    return events


def test_a_kept_connection_that_the_server_closed_is_replaced() -> None:
    async def run(server: ScriptedServer) -> None:
        async with Remote.at(server.url) as remote:
            await remote.get("/health")
            server.keep_alive = False
            for _ in range(3):
                await remote.get("/health")

    with running(ScriptedServer()) as server:
        asyncio.run(run(server))
        assert server.connections >= 3


def test_errors_carry_their_status() -> None:
    with running(ScriptedServer()) as server:
        server.refuse = {0: (503, {"error": {"message": "later\nplease"}})}
        with pytest.raises(RemoteError, match="503: later please") as error:
            ask(server, {})
        assert error.value.status == 503
        assert len(ask(server, {})) == 4
        server.break_after = 1
        with pytest.raises(RemoteError, match="closed the connection"):
            ask(server, {})


def test_a_cancelled_stream_closes_its_connection() -> None:
    async def run(server: ScriptedServer) -> None:
        async with Remote.at(server.url) as remote:
            came = asyncio.Event()
            stream = asyncio.ensure_future(remote.stream("/v1/completions", b"{}", lambda event, now: came.set()))
            await came.wait()
            stream.cancel()
            with pytest.raises(asyncio.CancelledError):
                await stream

    with running(ScriptedServer(("w",) * 100, delay=0.02)) as server:
        asyncio.run(run(server))
        assert server.cut.wait(120)


class TestOurServer:
    """The load generator against the real application and routes over a fake engine."""

    @pytest.mark.parametrize("backend", ["openai", "openai-chat"])
    def test_every_request_completes(
        self, backend: str, serve: Callable[..., RunningApp], capsys: pytest.CaptureFixture[str]
    ) -> None:
        app = serve({"max_model_len": 512})
        shape = ["--num-prompts", "20", "--random-input-len", "30", "--output-len", "12", "--max-concurrency", "8"]
        argv = ["bench", "serve", "--base-url", app.url, "--backend", backend, *shape]
        assert main([*argv, "--ignore-eos", "--output-json", "-", "--goodput", "e2el:60000"]) == 0
        result = json.loads(capsys.readouterr().out)
        assert (result["completed"], result["failed"], result["tokens_counted_by"]) == (20, 0, "usage")
        assert result["total_output_tokens"] == 240 and result["max_concurrent_requests"] == 8
        if backend == "openai":
            assert result["total_input_tokens"] == 600
        assert result["request_goodput"] == pytest.approx(result["request_throughput"])
        app.settle()
        assert app.state.admission.in_flight == 0 and app.state.admission.finished == 21

    def test_refusals_are_told(self, serve: Callable[..., RunningApp], capsys: pytest.CaptureFixture[str]) -> None:
        app = serve({"max_model_len": 64})
        argv = ["bench", "serve", "--base-url", app.url, "--num-prompts", "3", "--random-input-len", "100"]
        assert main([*argv, "--num-warmups", "0"]) == 1
        assert "3 × 400" in capsys.readouterr().err

"""Who is let in: bounded by requests and prompt tokens, decided before tokenising, and nobody's end is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from openai import OpenAI, RateLimitError
from starlette.requests import HTTPConnection

from cadence.entrypoints.server.http.admission import AdmissionControl, estimate_tokens
from cadence.entrypoints.server.http.errors import ApiError
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
SLOW = {"prompt": "The quick brown fox", "max_tokens": 400, "ignore_eos": True}


def balanced(admission: AdmissionControl) -> bool:
    ended = admission.finished + admission.failed + admission.aborted
    return admission.accepted == ended + admission.in_flight and admission.in_flight >= 0


def connection() -> HTTPConnection:
    return HTTPConnection({"type": "http", "headers": []})


def test_every_end_is_counted_once() -> None:
    async def scenario() -> AdmissionControl:
        admission = AdmissionControl(100, 1000, 1000)
        async with admission.enter(connection(), 5):
            assert (admission.in_flight, admission.tokens) == (1, 5)
        with pytest.raises(ValueError):
            async with admission.enter(connection(), 5):
                raise ValueError
        for gone in (asyncio.CancelledError, GeneratorExit, ConnectionResetError):
            with pytest.raises(gone):
                async with admission.enter(connection(), 5):
                    raise gone
        async with admission.enter(connection(), 5) as entry:
            entry.fail()
            entry.abort()
        return admission

    admission = asyncio.run(scenario())
    assert (admission.accepted, admission.finished, admission.failed, admission.aborted) == (6, 1, 2, 3)
    assert admission.in_flight == admission.tokens == admission.completions == 0 and balanced(admission)


def test_bounds_on_completions_and_tokens() -> None:
    admission = AdmissionControl(max_requests=4, max_tokens=100, max_model_len=1000)
    entries = [admission.enter(connection(), 40), admission.enter(connection(), 40, completions=2)]
    with pytest.raises(ApiError, match="4 requests") as caught:
        admission.enter(connection(), 1, completions=2)
    assert caught.value.status == 429 and int(caught.value.headers["Retry-After"]) >= 1
    with pytest.raises(ApiError, match="100 queued prompt tokens"):
        admission.enter(connection(), 21)
    entries.append(admission.enter(connection(), 20))
    assert admission.refused == 2 and balanced(admission)
    for entry in entries:
        entry.finish()
    with_room = admission.enter(connection(), 10_000, completions=50)  # an empty house takes anyone
    with_room.finish()
    admission.drain()
    with pytest.raises(ApiError) as closed:
        admission.enter(connection(), 1)
    assert closed.value.status == 503


def test_estimates_follow_size_and_shape() -> None:
    assert estimate_tokens("x" * 400) == 101
    assert estimate_tokens([1, 2, 3]) == 3 and estimate_tokens([[1, 2, 3], [4]]) == 4
    assert estimate_tokens(["x" * 40, "y" * 40]) == 22
    messages = [{"role": "user", "content": [{"type": "text", "text": "x" * 400}]}]
    assert 101 <= estimate_tokens(messages) <= 110


def test_429_at_once_and_before_tokenising(serve: Serve) -> None:
    app = serve({"delay": 0.01, "max_num_seqs": 1}, max_queued_requests=1)
    app.llm.tokenizer.encode("warm")
    with app.client() as client, ThreadPoolExecutor(2) as pool:
        running = [pool.submit(client.post, "/v1/completions", json={**SLOW, "max_tokens": 60}) for _ in range(2)]
        wait_for(lambda: len(app.llm.started) == 2)
        asked: list[str] = []
        encode = app.llm.tokenizer.encode
        app.llm.tokenizer.encode = lambda *given, **more: asked.append("x") or encode(*given, **more)  # type: ignore
        for _ in range(5):
            reply = client.post("/v1/completions", json={**SLOW, "prompt": "x" * 4000})
            assert reply.status_code == 429
            assert int(reply.headers["retry-after"]) >= 1 and reply.json()["error"]["reason"] == "rate_limit_exceeded"
        with pytest.raises(RateLimitError):
            OpenAI(base_url=app.url + "/v1", api_key="x", max_retries=0).completions.create(model="fake", prompt="x")
        assert not asked
        assert [job.result().status_code for job in running] == [200, 200]
        assert client.post("/v1/completions", json={**SLOW, "max_tokens": 2}).status_code == 200
    app.settle()
    admission = app.state.admission
    assert (admission.accepted, admission.finished, admission.refused) == (3, 3, 6) and balanced(admission)


def test_too_many_tokens_at_once(serve: Serve) -> None:
    app = serve({"delay": 0.01}, max_queued_tokens=50)
    with app.client() as client, ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.post, "/v1/completions", json={**SLOW, "max_tokens": 40})
        wait_for(lambda: bool(app.llm.started))
        reply = client.post("/v1/completions", json={"prompt": [7] * 60, "max_tokens": 1})
        assert reply.status_code == 429 and "prompt tokens" in reply.json()["error"]["message"]
        assert client.post("/v1/completions", json={"prompt": [7] * 20, "max_tokens": 1}).status_code == 200
        assert first.result().status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_leaves_aborts_its_request(serve: Serve, stream: bool) -> None:
    app = serve({"delay": 0.02})
    with pytest.raises(httpx.ReadTimeout), app.client() as client:
        body = {**SLOW, "stream": stream}
        with client.stream("POST", "/v1/completions", json=body, timeout=httpx.Timeout(120.0, read=0.3)) as reply:
            for _ in reply.iter_lines():
                raise httpx.ReadTimeout("enough")
    wait_for(lambda: len(app.llm.aborted) == 1)
    app.settle()
    admission = app.state.admission
    assert (admission.accepted, admission.aborted, admission.in_flight) == (1, 1, 0) and balanced(admission)


def test_the_deadline_ends_a_request_with_an_error(serve: Serve) -> None:
    app = serve({"delay": 0.02}, request_deadline=1.0)  # many times what two tokens take
    with app.client() as client:
        reply = client.post("/v1/completions", json=SLOW)
        assert reply.status_code == 408 and reply.json()["error"]["reason"] == "deadline_exceeded"
        with client.stream("POST", "/v1/completions", json={**SLOW, "stream": True}) as streamed:
            lines = [line for line in streamed.iter_lines() if line]
        assert "deadline_exceeded" in lines[-1] and len(lines) > 2 and "[DONE]" not in lines[-1]
        assert client.post("/v1/completions", json={**SLOW, "max_tokens": 2}).status_code == 200
    app.settle()
    assert (app.state.admission.failed, app.state.admission.finished) == (2, 1)
    assert len(app.llm.aborted) == 2 and balanced(app.state.admission)


def test_a_dead_engine_fails_what_runs_and_what_comes(serve: Serve) -> None:
    app = serve({"delay": 0.02})
    with app.client() as client, ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.post, "/v1/completions", json=SLOW)
        wait_for(lambda: bool(app.llm.started))
        app.do(app.llm.die)
        assert running.result().status_code == 503
        reply = client.post("/v1/completions", json=SLOW)
        assert reply.status_code == 503 and reply.json()["error"]["reason"] == "engine_unavailable"
    assert app.state.admission.failed == 2 and balanced(app.state.admission)


def wait_for(condition: Callable[[], bool], seconds: float = 240.0) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.005)

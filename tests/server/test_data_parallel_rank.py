"""The header X-data-parallel-rank: every route that generates hands it to the engine, and refuses what is no rank."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from cadence.core.contract.response_messages import ResumedResponse
from cadence.entrypoints.server.protocol.responses.responses import ResponsesBody
from cadence.entrypoints.server.responses.turn import PriorContext
from cadence.entrypoints.server.routes.response_request import ResponseRequest, new_origin
from cadence.entrypoints.server.routes.response_resume import resume_response
from tests.server.fake_llm import FakeLLM
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
HEADER = "X-data-parallel-rank"
MESSAGES = [{"role": "user", "content": "to be or not to be"}]
ASKED: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["to be", "or not"], "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/chat/completions/batch": {"messages": [MESSAGES, MESSAGES], "max_tokens": 2},
    "/v1/responses": {"input": "to be or not to be", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2, "model": "fake"},
    "/inference/v1/generate": {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 2}},
}


@pytest.mark.parametrize("path", ASKED)
def test_every_route_hands_the_rank_on(serve: Serve, fake_model: Path, path: str) -> None:
    llm = FakeLLM(fake_model, data_parallel_size=3)
    with serve(llm).client() as client:
        for rank in (None, 0, 2):
            llm.ranks.clear()
            reply = client.post(path, json=ASKED[path], headers={} if rank is None else {HEADER: str(rank)})
            assert reply.status_code == 200, reply.text
            assert llm.ranks and set(llm.ranks) == {rank}
        llm.ranks.clear()
        for wrong in ("3", "-1", "one", "", "1.0", "9" * 100):
            reply = client.post(path, json=ASKED[path], headers={HEADER: wrong})
            assert reply.status_code == 400, reply.text
            assert f"{HEADER} must be an integer from 0 to 2" in reply.json()["error"]["message"]
        assert not llm.ranks


def test_one_engine_has_rank_0_alone(serve: Serve, fake_model: Path) -> None:
    with serve(FakeLLM(fake_model)).client() as client:
        body = ASKED["/v1/chat/completions"]
        assert client.post("/v1/chat/completions", json=body, headers={HEADER: "0"}).status_code == 200
        reply = client.post("/v1/chat/completions", json=body, headers={HEADER: "1"})
        assert reply.status_code == 400 and reply.json()["error"]["param"] == HEADER
        assert "must be 0: there is one engine" in reply.json()["error"]["message"]


def test_a_response_that_is_made_again_keeps_its_rank(serve: Serve, fake_model: Path) -> None:
    llm = FakeLLM(fake_model, data_parallel_size=3)
    app = serve(llm)
    content = {**ASKED["/v1/responses"], "background": True}
    request = Request({"type": "http", "headers": [(HEADER.lower().encode(), b"2"), (b"authorization", b"secret")]})
    raw = json.dumps(content).encode()
    asked = ResponseRequest(ResponsesBody(**content), raw, PriorContext(b"[]", {}), request, new_origin())
    job = asked.start()["job"]
    assert job.headers == {HEADER.lower(): "2"}, "and no header that does not say how it is answered"
    resumed = ResumedResponse("", job, [], [], 60.0, False)
    asyncio.run_coroutine_threadsafe(resume_response(resumed, app.state), app.loop).result(60)
    app.settle()
    assert llm.ranks == [2]

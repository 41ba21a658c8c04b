"""The header X-data-parallel-rank: every route that generates hands it to the engine, and refuses what is no rank."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from cadence.audio.limits import AudioLimits
from cadence.config.pooling import PoolingConfig
from cadence.core.contract.response_messages import ResumedResponse
from cadence.entrypoints.server import make_state
from cadence.entrypoints.server.protocol.responses.responses import ResponsesBody
from cadence.entrypoints.server.responses.turn import PriorContext
from cadence.entrypoints.server.routes.response_request import ResponseRequest, new_origin
from cadence.entrypoints.server.routes.response_resume import resume_response
from cadence.entrypoints.speech.recordings import Recordings
from cadence.entrypoints.speech.service import Speech
from tests.server.fake_llm import FakeLLM
from tests.server.fakes_speech import TellsTimes, sound
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
    "/invocations": {"prompt": "to be", "max_tokens": 2},
    "/v1/embeddings": {"input": ["to be", "or not"]},
    "/pooling": {"input": "to be"},
    "/score": {"text_1": "to be", "text_2": ["or not", "to be"]},
    "/v1/score": {"text_1": "to be", "text_2": "or not"},
    "/rerank": {"query": "to be", "documents": ["or not", "to be"]},
    "/v1/rerank": {"query": "to be", "documents": ["or not"]},
    "/v2/rerank": {"query": "to be", "documents": ["or not"]},
    "/v1/embed": {"texts": ["to be"]},
    "/v2/embed": {"texts": ["to be"]},
    "/classify": {"input": "to be"},
    "/generative_scoring": {"query": "to be", "items": ["or not"], "label_token_ids": [5, 6]},
}
CLASSES = PoolingConfig(generates=False, tasks=("classify",), labels=("bad", "good"))
SPEECH = ("/v1/audio/transcriptions", "/v1/audio/translations")
NO_ENGINE = {  # what they answer is no engine's work
    "/v1/completions/render", "/v1/chat/completions/render", "/v1/messages/count_tokens", "/tokenize", "/detokenize",
    "/v1/responses/{response_id}/cancel",
}  # fmt: skip


def test_every_route_is_here(serve: Serve, fake_model: Path) -> None:
    with serve(FakeLLM(fake_model)).client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert {path for path, item in paths.items() if "post" in item} == {*ASKED, *SPEECH} | NO_ENGINE


@pytest.mark.parametrize("path", ASKED)
def test_every_route_hands_the_rank_on(serve: Serve, fake_model: Path, path: str) -> None:
    pooling = {"pooling": CLASSES} if path == "/classify" else {}
    llm = FakeLLM(fake_model, data_parallel_size=3, **pooling)
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


@pytest.mark.parametrize("path", SPEECH)
def test_recordings_have_it_too(serve: Serve, fake_model: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    teller = TellsTimes()
    monkeypatch.setattr(make_state, "open_speech", lambda *_: Speech(teller, Recordings(AudioLimits())))
    with serve(FakeLLM(fake_model, data_parallel_size=3)).client() as client:
        for given, status in (("2", 200), ("3", 400)):
            reply = client.post(path, headers={HEADER: given}, files={"file": ("a.wav", sound())})
            assert reply.status_code == status, reply.text
    ((_, _, request),) = teller.asked
    assert request.prompt_fields["data_parallel_rank"] == 2
    assert HEADER in reply.json()["error"]["message"]


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

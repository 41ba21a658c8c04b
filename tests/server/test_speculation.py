"""Speculation over HTTP: what a request may ask for, at every endpoint that generates, and what it is told."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cadence.core.contract.request import EngineRequest
from cadence.core.contract.update import RequestUpdate
from cadence.core.outputs import CompletionOutput, RequestOutput
from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.server.chat.answer_parser import AnswerPiece
from cadence.entrypoints.server.chat.choice import ParsedChoice
from cadence.entrypoints.server.chat.events import TextDelta
from cadence.entrypoints.server.chat.tools.base import Text
from tests.server.fake_llm import FakeLLM
from tests.server.fakes_chat import sse
from tests.server.test_completions import Serve

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": CHAT,
}
LIMIT = {"num_tokens": 2}


class RecordingLLM(FakeLLM):
    """Keeps the parameters of every request."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.params: list[SamplingParams] = []

    async def generate(
        self, prompt: Any, params: SamplingParams, request_id: str, *, priority: int = 0
    ) -> AsyncIterator[RequestOutput]:
        self.params.append(params)
        async for output in super().generate(prompt, params, request_id, priority=priority):
            yield output


@pytest.mark.parametrize("path", BODIES)
def test_every_endpoint_hands_the_limit_on(serve: Serve, fake_model: Path, path: str) -> None:
    llm = RecordingLLM(fake_model)
    with serve(llm).client() as client:
        for extra in ({}, {"speculative": None}, {"speculative": {}}, {"speculative": LIMIT}):
            reply = client.post(path, json={**BODIES[path], **extra})
            assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text
    assert [params.speculative for params in llm.params] == [None, None, None, LIMIT]


def test_requests_of_token_ids_too(serve: Serve, fake_model: Path) -> None:
    llm = RecordingLLM(fake_model)
    body = {"token_ids": [5, 6], "sampling_params": {"max_tokens": 2, "speculative": {"num_tokens": 0}}}
    with serve(llm).client() as client:
        assert client.post("/inference/v1/generate", json=body).status_code == 200
        rendered = client.post("/v1/completions/render", json={"prompt": "hi", "speculative": LIMIT}).json()
        assert "speculative" in str(rendered)
    assert llm.params[0].speculative == {"num_tokens": 0}


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("given", [{"num_tokens": -1}, {"num_tokens": "many"}, {"num_tokens": 2**70}, [4], "off"])
def test_a_wrong_limit_is_named(serve: Serve, path: str, given: object) -> None:
    with serve().client() as client:
        reply = client.post(path, json={**BODIES[path], "speculative": given})
    assert reply.status_code == 400 and "speculative" in reply.json()["error"]["message"], reply.text


def test_other_names_in_it_are_named_and_change_nothing(serve: Serve) -> None:
    with serve().client() as client:
        reply = client.post("/v1/completions", json={**BODIES["/v1/completions"], "speculative": {"k": 3}})
    assert reply.status_code == 200 and reply.headers["x-cadence-ignored"] == "speculative.k"


class DraftingLLM(FakeLLM):
    """Every forward verifies four drafts and brings three tokens: two drafts and its own."""

    def _token(self, request: EngineRequest, step: int) -> RequestUpdate:
        updates: list[RequestUpdate] = []
        for place in range(3 * step, 3 * step + 3):
            updates.append(super()._token(request, place))
            if updates[-1].finish_reason is not None:
                break
        tokens = [token for update in updates for token in update.new_token_ids]
        logprobs = [entry for update in updates for entry in update.logprobs]
        return replace(
            updates[0], new_token_ids=tokens, logprobs=logprobs, runs=[(4, len(tokens))],
            finish_reason=updates[-1].finish_reason,
        )  # fmt: skip


ASKED = {
    "/v1/completions": {"prompt": "hello there", "max_tokens": 7},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hello there"}], "max_tokens": 7},
}


@pytest.mark.parametrize("path", ASKED)
def test_which_tokens_were_drafts(serve: Serve, fake_model: Path, path: str) -> None:
    """Seven tokens: three, three and one; the last of each is the forward's own."""
    body = {**ASKED[path], "return_token_ids": True, "speculative": {"return_drafted": True}}
    with serve(DraftingLLM(fake_model)).client() as client:
        whole = client.post(path, json=body).json()["choices"][0]
        assert len(whole["token_ids"]) == 7 and whole["drafted"] == [0, 1, 3, 4]
        reply = client.post(path, json={**body, "stream": True})
        events = [json.loads(data) for data in sse(reply.text) if data != "[DONE]"]
        chunks = [event["choices"][0] for event in events if event["choices"][0].get("token_ids")]
        assert [token for chunk in chunks for token in chunk["token_ids"]] == whole["token_ids"]
        drafted, first = [], 0
        for chunk in chunks:
            drafted += [first + place for place in chunk["drafted"]]
            first += len(chunk["token_ids"])
        assert drafted == [0, 1, 3, 4]


@pytest.mark.parametrize("path", ASKED)
def test_nothing_is_said_unasked(serve: Serve, fake_model: Path, path: str) -> None:
    with serve(DraftingLLM(fake_model)).client() as client:
        for stream in (False, True):
            assert "drafted" not in client.post(path, json={**ASKED[path], "stream": stream}).text


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_endpoints_that_have_no_place_for_it_say_so(serve: Serve, path: str) -> None:
    with serve().client() as client:
        reply = client.post(path, json={**BODIES[path], "speculative": {"return_drafted": True}})
    assert reply.status_code == 200 and reply.headers["x-cadence-ignored"] == "speculative.return_drafted"


class HoldingParser:
    """Text comes out with the next piece, as where it might begin a tool call."""

    def __init__(self) -> None:
        self._held: list[AnswerPiece] = []

    def push(self, text: str) -> list[AnswerPiece]:
        released, self._held = self._held, [Text(text)]
        return released

    def finish(self) -> list[AnswerPiece]:
        return self._held


def test_drafts_keep_their_place_where_text_is_held_back() -> None:
    choice = ParsedChoice(0, HoldingParser(), "", lambda: "id")  # type: ignore[arg-type]
    first = CompletionOutput(0, "a b", [5, 6], drafted=[0])
    assert choice.read(first) == []
    last = CompletionOutput(0, "c d e", [7, 8, 9], drafted=[0, 1], finish_reason="length")
    said = [event for event in choice.read(last) if isinstance(event, TextDelta)]
    tokens = [token for event in said for token in event.token_ids]
    assert tokens == [5, 6, 7, 8, 9] and [event.token_ids[place] for event in said for place in event.drafted] == [
        5,
        7,
        8,
    ]

"""What is wrong with a completion request is said by name, with 400, and nothing reaches the engine."""

from __future__ import annotations

import json
import socket
import time
from typing import Any

import openai
import pytest

from cadence.core.failure import FailureCode
from cadence.core.outputs import CompletionOutput
from cadence.entrypoints.server.chat.events import ChoiceEnd
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.http.errors import ApiError
from cadence.sample.output import NO_TOKEN_LEFT
from tests.server.fakes_chat import MODEL, PROMPT, FailingLLM, openai_client, sse
from tests.server.test_completions import Serve

BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"temperature": "hot"}, "temperature", "number"),
    ({"temperature": -1}, "temperature", "at least 0"),
    ({"top_p": 0}, "top_p", "greater than 0"),
    ({"n": 0}, "n", "greater than or equal to 1"),
    ({"n": 129}, "n", "128"),
    ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0"),
    ({"max_tokens": 2.5}, "max_tokens", "integer"),
    ({"max_tokens": True}, "max_tokens", "integer"),
    ({"stop": [f"stop {i}" for i in range(17)]}, "stop", "16"),
    ({"stop": [""]}, "stop", "not empty"),
    ({"stop": {"a": 1}}, "stop", "valid string or input should be a valid list"),
    ({"stop": ["a", 1]}, "stop", "string"),
    ({"logit_bias": {"abc": 1}}, "logit_bias", "integer"),
    ({"logit_bias": {"9999": 1}}, "logit_bias", "vocabulary"),
    ({"logit_bias": {str(i): 1 for i in range(1025)}}, "logit_bias", "1024"),
    ({"logprobs": 21}, "logprobs", "at most 20"),
    ({"logprobs": -1}, "logprobs", "at most 20"),
    ({"logprobs": -2}, "logprobs", "greater than or equal to -1"),
    ({"logprob_token_ids": [5]}, "logprob_token_ids", "needs logprobs"),
    ({"max_tokens": 1020, "prompt": [5] * 5}, "max_tokens", "1025 tokens (5 in the messages, 1020 in the completion)"),
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options", "stream is true"),
    ({"max_tokens": "three"}, "max_tokens", "integer"),
    ({"temperature": "NaN"}, "temperature", "finite"),
    ({"temperature": True}, "temperature", "a number, not true"),
    ({"stop_token_ids": [True]}, "stop_token_ids", "integers"),
    ({"best_of": 2}, "best_of", "choose among them"),
    ({"suffix": "end"}, "suffix", "only continue"),
    ({"suffix": "end", "prompt": [5]}, "suffix", "not token ids"),
    ({"suffix": "end", "echo": True}, "echo", "beside suffix"),
    ({"suffix": 3}, "suffix", "string"),
    ({"prompt_embeds": "AAAA"}, "prompt_embeds", "--enable-prompt-embeds"),
    ({"guided_json": "{"}, "guided_json", "JSON"),
    ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "string"),
    ({"use_beam_search": True, "logit_bias": {"5": 1}}, "logit_bias", "use_beam_search"),
    ({"stream": "maybe"}, "stream", "boolean"),
    ({"prompt": ""}, "prompt", "empty"),
    ({"prompt": []}, "prompt", "not empty"),
    ({"prompt": 5}, "prompt", "must be a string"),
    ({"prompt": ["a", [1]]}, "prompt[0]", "one kind only"),
    ({"prompt": [[1], []]}, "prompt[1]", "token ids"),
    ({"prompt": [1.5]}, "prompt[0]", "token ids"),
    ({"prompt": [100_000]}, "prompt", "out of range"),
    ({"prompt": [[5], [100_000]]}, "prompt", "out of range"),
    ({"prompt": [5, 2**64]}, "prompt", "out of range"),
    ({"prompt": [5, -1]}, "prompt", "out of range"),
    ({"prompt": [5, "a"]}, "prompt", "not all of it"),
    ({"prompt": ["a"] * 1025}, "prompt", "1024"),
    ({"prompt": ["a"] * 100, "n": 100}, "n", "1024"),
    ({"prompt": [5] * 2000}, "prompt", "maximum context length is 1024 tokens"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
    ({"truncation_side": "up"}, "truncation_side", "pattern"),
    ({"seed": 2**70}, "seed", "64 bits"),
    ({"seed": -(2**63) - 1}, "seed", "at least"),
    ({"n": 2, "temperature": 0}, "n", "greedy"),
    ({"request_id": "a b"}, "request_id", "pattern"),
]


@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields(serve: Serve, stream: bool) -> None:
    app = serve()
    with app.client() as client:
        for fields, param, words in BAD:
            body = {"model": MODEL, "prompt": PROMPT, "stream": stream, **fields}
            answer = client.post("/v1/completions", json=body)
            assert answer.status_code == 400, (fields, answer.text)
            error = answer.json()["error"]
            assert error["param"] == param, (fields, error)
            assert words in error["message"], (fields, error)
            assert error["type"] == "invalid_request_error"
    assert app.state.admission.in_flight == 0
    assert len(app.llm.started) == len(app.llm.aborted)  # a bad prompt beside a good one takes it along


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "JSON object"),
        (b'{"model": "fake", "prompt": "a", "temperature": NaN}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": Infinity}', "not valid JSON"),
        (b'{"model": "fake", "prompt": "a", "temperature": 1e999}', "JSON"),
        (b'{"model": "fake", "prompt": "a", "seed": 1.5}', "integer"),
        (b'{"model": "fake"}', "prompt"),
    ],
)
def test_bad_bodies(serve: Serve, raw: bytes, words: str) -> None:
    with serve().client() as client:
        answer = client.post("/v1/completions", content=raw, headers={"content-type": "application/json"})
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_the_client_raises_what_was_meant(serve: Serve) -> None:
    client = openai_client(serve())
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model=MODEL, prompt="a", temperature=-1)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="another", prompt="a")
    assert unknown.value.body["reason"] == "model_not_found"


def test_a_failed_request_is_an_error(fake_model: Any, serve: Serve) -> None:
    app = serve(FailingLLM(fake_model, after=0))
    with pytest.raises(openai.InternalServerError, match="the step failed"):
        openai_client(app).completions.create(model=MODEL, prompt=PROMPT)
    app.settle()
    assert app.state.admission.failed == 1


@pytest.mark.parametrize("error", [None, RuntimeError("a bug")])
def test_a_stream_that_breaks_has_no_done(fake_model: Any, serve: Serve, error: Exception | None) -> None:
    app = serve(FailingLLM(fake_model, after=3, error=error))
    with app.client() as client:
        body = {"model": MODEL, "prompt": PROMPT, "stream": True, "max_tokens": 8}
        events = sse(client.post("/v1/completions", json=body).text)
    assert len(events) == 4 and '"error"' in events[-1] and "server_error" in events[-1]
    assert "a bug" not in events[-1]
    app.settle()
    assert app.state.admission.failed == 1 and app.state.admission.in_flight == 0
    with pytest.raises(openai.APIError):
        list(openai_client(app).completions.create(model=MODEL, prompt=PROMPT, stream=True))


def test_leaving_ends_the_request(serve: Serve) -> None:
    app = serve({"delay": 0.01})
    stream = openai_client(app).completions.create(model=MODEL, prompt=[PROMPT] * 3, max_tokens=900, stream=True)
    next(iter(stream))
    stream.response.close()
    app.settle()
    assert app.state.admission.in_flight == 0
    assert len(app.llm.aborted) == 3


def test_leaving_before_the_answer_ends_the_request(serve: Serve) -> None:
    app = serve({"delay": 0.05})
    asked = json.dumps({"model": MODEL, "prompt": PROMPT, "max_tokens": 900}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {len(asked)}"
    with socket.create_connection(("127.0.0.1", app.port), timeout=120) as wire:
        wire.sendall(head.encode() + b"\r\n\r\n" + asked)
        ends = time.monotonic() + 120
        while not app.llm.started and time.monotonic() < ends:
            time.sleep(0.005)
    app.settle()
    assert len(app.llm.aborted) == 1 and app.state.admission.aborted == 1


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [(FailureCode.NO_TOKEN_LEFT, 400, "no_token_left"), (FailureCode.BAD_LOGITS, 500, None), (None, 500, None)],
)
def test_a_failure_is_told_by_its_code_and_not_by_its_sentence(
    failure: FailureCode | None, status: int, code: str | None
) -> None:
    words = NO_TOKEN_LEFT.message
    for choice in (
        CompletionOutput(0, "", [], finish_reason="error", stop_reason=words, failure=failure),
        ChoiceEnd(0, "error", words, failure),
    ):
        with pytest.raises(ApiError, match="no token can be chosen") as error:
            raise_failure(choice)
        assert (error.value.status, error.value.code) == (status, code)

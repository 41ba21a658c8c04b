"""Nothing is ignored in silence: fields without effect are named in the answer and, once per name, in the log."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import pytest

from cadence import SamplingParams
from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import MAX_NAMED, Ignored
from cadence.entrypoints.server.protocol import beam, sampling
from cadence.entrypoints.server.protocol.body import MAX_UNKNOWN, parse_body
from cadence.entrypoints.server.protocol.completions import CompletionBody
from cadence.entrypoints.server.protocol.sampling import EndpointFields, GenerationBody
from tests.server.test_completions import Serve

HEADER = "x-cadence-ignored"
CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/responses": {"input": "hi", "max_output_tokens": 16},
    "/v1/messages": CHAT,
    "/v1/messages/count_tokens": {"messages": CHAT["messages"]},
    "/tokenize": {"prompt": "hi"},
    "/detokenize": {"tokens": [1]},
}


@pytest.mark.parametrize("path", BODIES)
def test_unknown_fields_are_named_in_the_answer(serve: Serve, path: str) -> None:
    with serve().client() as client:
        plain = client.post(path, json=BODIES[path])
        assert plain.status_code == 200 and HEADER not in plain.headers, plain.text
        reply = client.post(path, json={**BODIES[path], "quux": {"a": [1]}, "context_managemnt": None})
        assert reply.status_code == 200 and reply.headers[HEADER] == "quux, context_managemnt", reply.text


@pytest.mark.parametrize("path", BODIES)
def test_strict_servers_refuse_them(serve: Serve, path: str) -> None:
    with serve(strict_requests=True).client() as client:
        assert client.post(path, json=BODIES[path]).status_code == 200
        reply = client.post(path, json={**BODIES[path], "quux": 1})
        assert reply.status_code == 400 and "quux has no effect here" in reply.text
    with serve(strict_requests=True).client() as client:
        reply = client.post(path, json={**BODIES[path], "modle": "fake"})
        assert reply.status_code == 400 and "did you mean model?" in reply.text


def test_hints_are_named_and_promises_refused(serve: Serve) -> None:
    hints = {"user": "u", "metadata": {"a": "b"}, "store": True, "prediction": {"type": "content", "content": "x"}}
    nothing = {"verbosity": "medium", "store": False, "service_tier": "auto", "guided_json": None, "suffix": ""}
    with serve().client() as client:
        reply = client.post("/v1/chat/completions", json={**CHAT, **hints})
        assert reply.status_code == 200 and set(reply.headers[HEADER].split(", ")) == set(hints)
        reply = client.post("/v1/chat/completions", json={**CHAT, **nothing})
        assert reply.status_code == 200 and HEADER not in reply.headers
        reply = client.post("/v1/chat/completions", json={**CHAT, "lora_request": {"lora_name": "x"}})
        assert reply.status_code == 400 and "lora_request is not supported" in reply.text


def test_streams_name_them_in_their_head(serve: Serve) -> None:
    body = {**CHAT, "stream": True, "stream_options": {"include_usage": True, "pace": 3}}
    with serve().client() as client, client.stream("POST", "/v1/chat/completions", json=body) as reply:
        assert reply.status_code == 200 and reply.headers[HEADER] == "stream_options.pace"
        assert b"[DONE]" in reply.read()


def test_the_log_says_each_name_once(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "cadence.server"), serve().client() as client:
        for _ in range(3):
            client.post("/v1/completions", json={"prompt": "hi", "max_tokens": 1, "temperatura": 1})
    lines = [record.getMessage() for record in caplog.records if "temperatura" in record.getMessage()]
    assert len(lines) == 1 and "did you mean temperature?" in lines[0]


def test_names_are_fit_for_a_header_whatever_they_are() -> None:
    ignored = Ignored()
    for name in ("a\r\nset-cookie: x", "ü" * 500, "", "tools[3].type"):
        ignored.add(name)
    assert ignored.header().decode().split(", ") == ["a??set-cookie??x", "?" * 64, "?", "tools[3].type"]
    for number in range(100):
        ignored.add(f"x{number}")
    assert len(ignored.names) == MAX_NAMED and ignored.header().endswith(b"and 72 more")


def test_a_body_of_unknown_fields_only_is_refused() -> None:
    raw = b'{"prompt":"a",' + b",".join(b'"x%d":1' % i for i in range(MAX_UNKNOWN + 1)) + b"}"
    with pytest.raises(InvalidRequestError, match="more than 256 unknown fields"):
        parse_body(CompletionBody, raw, Ignored())


def test_every_sampling_parameter_is_a_field_of_a_body() -> None:
    """Or has no meaning over HTTP, or another name there, and is named here."""
    python = {"logits_processors", "extra_args", "flat_logprobs", "skip_reading_prefix_cache"}
    said_otherwise = {"output_kind", "detokenize", "guided_decoding"}  # by stream, the endpoint, structured_outputs
    internal = {"bad_words_token_ids", "thinking_token_ids", "speech_rules", "skip_clone"}
    refused = {"early_stopping", "routed_experts_prompt_start", "trace_decode_token_ids"}
    parameters = {field.name for field in dataclasses.fields(SamplingParams)}
    assert parameters - set(CompletionBody.model_fields) == python | said_otherwise | internal | refused


def test_what_a_body_says_is_passed_on() -> None:
    """Every field that takes a number; and a beam search refuses or names those that it does not take."""
    some = {int | None: 2, float | None: 0.5}  # of each type: no field's default
    kinds: dict[str, Any] = {name: GenerationBody.model_fields[name].annotation for name in sampling.SAME_NAME}
    numbers = {name: some[kind] for name, kind in kinds.items() if kind in some}
    assert {"top_k", "min_p", "seed", "presence_penalty"} <= numbers.keys()
    body = CompletionBody(prompt="a", **numbers)
    params = sampling.sampling_params(body, {}, EndpointFields(max_tokens=3, logprobs=None))
    assert {name: getattr(params, name) for name in numbers} == numbers
    for name in numbers.keys() - {"n"}:
        body = CompletionBody(prompt="a", use_beam_search=True, **{name: numbers[name]})
        try:
            beam.beam_params(body, EndpointFields(max_tokens=3, logprobs=None), room=9)
            assert body.ignored.names == [name]
        except InvalidRequestError as error:
            assert error.field == name
    with pytest.raises(InvalidRequestError, match="best_of is not supported"):
        body = CompletionBody(prompt="a", use_beam_search=True, n=2, best_of=3)
        beam.beam_params(body, EndpointFields(max_tokens=3, logprobs=None), room=9)

"""Requests made from the server's own description of itself, good and bad ones: no 5xx, and errors in our shape."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case
from schemathesis.generation import GenerationMode

from tests.server.helpers import FakeLLM, RunningApp, run_app

EXAMPLES, MANY = 4, 30  # per operation and mode
WITH_BODY = (
    "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens",
    "/tokenize", "/detokenize", "/v1/chat/completions/batch", "/v1/chat/completions/render",
    "/v1/completions/render", "/invocations", "/inference/v1/generate", "/v1/embeddings", "/pooling", "/classify",
    "/score", "/v1/score", "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/v1/embed", "/v2/embed",
    "/v1/audio/transcriptions", "/v1/audio/translations",
)  # fmt: skip
WITHOUT = (
    "/v1/responses/{response_id}", "/v1/responses/{response_id}/cancel", "/v1/responses/{response_id}/input_items",
    "/v1/models/{model}", "/v1/models", "/health", "/livez", "/readyz", "/version", "/load", "/ping", "/metrics",
    "/engine/state",
)  # fmt: skip
CASES = [
    *((path, mode) for path in WITH_BODY for mode in GenerationMode),
    *((path, GenerationMode.POSITIVE) for path in WITHOUT),
]


@pytest.fixture(scope="module")
def app(fake_model: Path) -> Iterator[RunningApp]:
    with run_app(FakeLLM(fake_model), max_body_bytes=100_000) as running:
        yield running


@pytest.fixture(scope="module")
def described(app: RunningApp) -> schemathesis.BaseSchema:
    return schemathesis.openapi.from_url(app.url + "/openapi.json")


def test_everything_described_is_tried(described: schemathesis.BaseSchema) -> None:
    assert {*WITH_BODY, *WITHOUT} == set(described)


@pytest.mark.parametrize(("path", "mode"), CASES, ids=[f"{path}-{mode.name.lower()}" for path, mode in CASES])
def test_no_request_breaks_the_server(described: schemathesis.BaseSchema, path: str, mode: GenerationMode) -> None:
    send_requests(described, path, mode, EXAMPLES)


@pytest.mark.wide
@pytest.mark.parametrize(("path", "mode"), CASES, ids=[f"{path}-{mode.name.lower()}" for path, mode in CASES])
def test_none_of_many_breaks_the_server(described: schemathesis.BaseSchema, path: str, mode: GenerationMode) -> None:
    send_requests(described, path, mode, MANY)


def send_requests(described: schemathesis.BaseSchema, path: str, mode: GenerationMode, examples: int) -> None:
    for operation in described[path].values():

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def check(case: Case) -> None:
            _check(case.call(timeout=240))

        check()


def _check(reply: schemathesis.Response) -> None:
    assert reply.status_code < 500 and reply.status_code != 422, reply.text
    if reply.status_code >= 400:
        error = httpx.Response(reply.status_code, content=reply.content).json()["error"]
        assert error["message"] and error["type"]

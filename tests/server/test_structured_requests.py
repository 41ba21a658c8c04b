"""Each way of saying what the output must be reaches the engine as the same constraint, or is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.fakes_chat import MODEL, PROMPT
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
CHAT = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2}
COMPLETION = {"prompt": "a", "max_tokens": 1}
MESSAGE = {**CHAT, "model": MODEL}
RESPONSE = {"input": PROMPT, "max_output_tokens": 2}


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve({"script": "One two three."})


@pytest.fixture
def client(app: RunningApp) -> Iterator[httpx.Client]:
    with app.client() as client:
        yield client


PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
BOTH: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "json_object"}}, "response_format"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}}},
        "response_format.json_schema.schema",
    ),
    ({"structured_outputs": {"json": SCHEMA}}, "structured_outputs.json"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "structured_outputs.choice"),
    ({"guided_json": SCHEMA}, "guided_json"),
    ({"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "xgrammar"}, "guided_json"),
    ({"guided_regex": "a+"}, "guided_regex"),
    ({"guided_choice": ["a"]}, "guided_choice"),
    ({"guided_grammar": 'root ::= "a"'}, "guided_grammar"),
]
CASES = [(path, body, fields, field) for path, body in PATHS.items() for fields, field in BOTH] + [
    ("/v1/messages", MESSAGE, {"output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}},
     "output_config.format.schema"),
    ("/v1/responses", RESPONSE, {"text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}},
     "text.format.schema"),
    ("/v1/responses", RESPONSE, {"text": {"format": {"type": "json_object"}}}, "text.format"),
    ("/v1/responses", RESPONSE, {"structured_outputs": {"regex": "a"}}, "structured_outputs.regex"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "fields", "field"), CASES)
def test_every_way_reaches_the_engine(
    app: RunningApp, client: httpx.Client, path: str, body: dict[str, Any], fields: dict[str, Any], field: str
) -> None:
    reply = client.post(path, json={**body, **fields})
    assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text
    (spec,) = app.llm.grammars
    assert spec is not None and spec.source == field


FREE: list[dict[str, Any]] = [
    {"response_format": {"type": "text"}},
    {"response_format": None, "structured_outputs": None, "guided_json": None},
    {"structured_outputs": {}, "guided_choice": [], "guided_regex": ""},
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("fields", FREE)
def test_what_asks_for_nothing_is_free(client: httpx.Client, path: str, fields: dict[str, Any]) -> None:
    reply = client.post(path, json={**PATHS[path], **fields})
    assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": 3}}, "response_format"),
    ({"response_format": {"kind": "text"}}, "response_format"),
    ({"response_format": "json"}, "response_format"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 1}}}, "response_format.json_schema.schema"),
    ({"response_format": {"type": "structural_tag", "structures": 1}}, "response_format"),
    ({"structured_outputs": {"json": "{"}}, "structured_outputs.json"),
    ({"structured_outputs": {"yaml": "{"}}, "structured_outputs"),
    ({"structured_outputs": {"json": {}, "regex": "a"}}, "structured_outputs"),
    ({"guided_json": "{"}, "guided_json"),
    ({"guided_regex": 3}, "guided_regex"),
    ({"guided_choice": [1]}, "guided_choice[0]"),
    ({"guided_choice": ["a"] * 70_000}, "guided_choice"),
    ({"guided_json": {}, "guided_regex": "a"}, "guided_json"),
    ({"guided_json": {}, "response_format": {"type": "json_object"}}, "response_format"),
    ({"guided_json": {}, "guided_decoding_backend": "outlines"}, "guided_json.backend"),
]


@pytest.mark.parametrize(("fields", "field"), WRONG)
def test_what_is_wrong_is_named(client: httpx.Client, fields: dict[str, Any], field: str) -> None:
    for path, body in PATHS.items():
        reply = client.post(path, json={**body, **fields})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, field), reply.text
        assert len(reply.text) < 600

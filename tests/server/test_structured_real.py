"""Output that must parse, over the real engine: every endpoint, each way of asking, whole and streamed. A tiny random
model says nonsense, and still whatever it finishes is what was asked for."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import httpx
import jsonschema
import pytest

from tests.server.fakes_chat import WEATHER
from tests.server.helpers import ServerProcess

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
SAID: Any = [{"role": "user", "content": "the quick brown fox"}]
BODIES: dict[str, dict[str, Any]] = {
    CHAT: {"messages": SAID, "max_tokens": 120},
    COMPLETIONS: {"prompt": "the quick brown fox", "max_tokens": 120},
    RESPONSES: {"input": "the quick brown fox", "max_output_tokens": 120},
    MESSAGES: {"messages": SAID, "max_tokens": 120, "model": "tiny"},
}
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "n": {"type": "integer", "minimum": 0, "maximum": 9},
                   "kind": {"enum": ["fox", "dog"]}},
    "required": ["ok", "n", "kind"],
    "additionalProperties": False,
}  # fmt: skip
FORMAT = {"type": "json_schema", "json_schema": {"name": "animal", "schema": SCHEMA, "strict": True}}
FLAT = {"type": "json_schema", "name": "animal", "schema": SCHEMA, "strict": True}
COMPACT = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}  # noise would never end white space
KINDS = {"enum": ["fox", "dog", 12]}
REGEX, CHOICE = r"[a-f]{3,6}-\d\d", ["the lazy dog", "the fox", "it"]
GRAMMAR = 'root ::= "(" [a-c] ")" | "[" [0-9] "]"'
GRAMMAR_RE = r"\([a-c]\)|\[[0-9]\]"
TAG = {"type": "structural_tag", "format": {"type": "tag", "begin": "<n>", "end": "</n>",
                                            "content": {"type": "regex", "pattern": "[0-9]{2}"}}}  # fmt: skip

GENERAL: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": FORMAT}, SCHEMA),
    (COMPACT, SCHEMA),
    ({"structured_outputs": {"regex": REGEX}}, REGEX),
    ({"structured_outputs": {"choice": CHOICE}}, "|".join(CHOICE)),
    ({"structured_outputs": {"grammar": GRAMMAR}}, GRAMMAR_RE),
    ({"structured_outputs": {"structural_tag": TAG}}, "<n>[0-9]{2}</n>"),
    ({"guided_json": SCHEMA}, SCHEMA),
    ({"guided_regex": REGEX, "guided_decoding_backend": "guidance"}, REGEX),
    ({"guided_choice": CHOICE}, "|".join(CHOICE)),
    ({"guided_grammar": GRAMMAR}, GRAMMAR_RE),
]
CASES = [
    *((path, fields, wanted) for path in (CHAT, COMPLETIONS) for fields, wanted in GENERAL),
    (RESPONSES, {"text": {"format": FLAT}}, SCHEMA),
    (RESPONSES, {"structured_outputs": {"regex": REGEX}}, REGEX),
    (RESPONSES, {"guided_choice": CHOICE}, "|".join(CHOICE)),
    (MESSAGES, {"output_config": {"format": {**FLAT, "schema": KINDS}}}, KINDS),
]


@pytest.fixture(scope="module")
def client(tiny_server: ServerProcess) -> Iterator[httpx.Client]:
    with tiny_server.client() as client:
        yield client


def body_of(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    return {**BODIES[path], "temperature": 1.0, **({} if path == MESSAGES else {"seed": 5}), **fields}


def events_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def answer(client: httpx.Client, path: str, fields: dict[str, Any]) -> tuple[str, str]:
    """The text of the first choice, and why it ended."""
    reply = client.post(path, json=body_of(path, fields))
    assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text
    whole = reply.json()
    if path == CHAT:
        return whole["choices"][0]["message"]["content"], whole["choices"][0]["finish_reason"]
    if path == COMPLETIONS:
        return whole["choices"][0]["text"], whole["choices"][0]["finish_reason"]
    if path == RESPONSES:
        return whole["output"][0]["content"][0]["text"], whole["status"]
    return whole["content"][0]["text"], whole["stop_reason"]


def streamed(client: httpx.Client, path: str, fields: dict[str, Any]) -> str:
    reply = client.post(path, json=body_of(path, {**fields, "stream": True}))
    assert reply.status_code == 200, reply.text
    events, text = events_of(reply.text), ""
    for event in events:
        if path == CHAT:
            text += "".join(choice["delta"].get("content") or "" for choice in event["choices"])
        elif path == COMPLETIONS:
            text += "".join(choice["text"] for choice in event["choices"])
        elif path == RESPONSES and event["type"] == "response.output_text.delta":
            text += event["delta"]
        elif path == MESSAGES and event["type"] == "content_block_delta":
            text += event["delta"]["text"]
    return text


def check(text: str, wanted: Any) -> None:
    if isinstance(wanted, str):
        assert re.fullmatch(wanted, text), text
    else:
        jsonschema.validate(json.loads(text), wanted)


@pytest.mark.parametrize(("path", "fields", "wanted"), CASES)
def test_the_answer_is_what_was_asked_for(client: httpx.Client, path: str, fields: dict[str, Any], wanted: Any) -> None:
    text, ended = answer(client, path, fields)
    assert ended in ("stop", "completed", "end_turn")
    check(text, wanted)
    again = streamed(client, path, fields)
    check(again, wanted)
    assert again == text or path == MESSAGES  # without a seed


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, RESPONSES])
def test_any_json_object(client: httpx.Client, path: str) -> None:
    fields = {"text": {"format": {"type": "json_object"}}} if path == RESPONSES else {}
    text, ended = answer(client, path, fields or {"response_format": {"type": "json_object"}})
    assert text.lstrip().startswith("{")
    if ended in ("stop", "completed"):
        assert isinstance(json.loads(text), dict)


def test_each_of_several_choices(client: httpx.Client) -> None:
    fields = {**COMPACT, "n": 4, "stream_options": {"include_usage": True}, "stream": True}
    texts: dict[int, str] = {}
    for event in events_of(client.post(CHAT, json=body_of(CHAT, fields)).text):
        for choice in event["choices"]:
            texts[choice["index"]] = texts.get(choice["index"], "") + (choice["delta"].get("content") or "")
        usage = event.get("usage")
    assert usage["completion_tokens"] > 4 * 5 and len(texts) == 4 and len(set(texts.values())) > 1
    for text in texts.values():
        check(text, SCHEMA)


BAD: list[tuple[str, dict[str, Any], str]] = [
    *((path, {"structured_outputs": {"regex": "[a-"}}, "structured_outputs.regex") for path in (CHAT, COMPLETIONS)),
    (CHAT, {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "fox"}}}},
     "response_format.json_schema.schema"),
    (COMPLETIONS, {"guided_grammar": 'root ::= "a" other'}, "guided_grammar"),
    (RESPONSES, {"text": {"format": {**FLAT, "schema": {"type": "fox"}}}}, "text.format.schema"),
    (MESSAGES, {"output_config": {"format": {**FLAT, "schema": {"type": "fox"}}}}, "output_config.format.schema"),
    (CHAT, {"tool_choice": "required",
            "tools": [WEATHER, {"type": "function", "function": {"name": "bad", "parameters": {"type": "fox"}}}]},
     "tools"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "fields", "field"), BAD)
def test_bad_constraints_are_named_before_any_byte(
    client: httpx.Client, path: str, fields: dict[str, Any], field: str, stream: bool
) -> None:
    reply = client.post(path, json=body_of(path, {**fields, "stream": stream}))
    assert reply.status_code == 400, reply.text
    error = reply.json()["error"]
    assert field in error["message"] and error.get("param", field) == field
    assert error["type"] == "invalid_request_error" and ("'bad'" in error["message"] or field != "tools")


def test_bad_constraints_disturb_nobody(client: httpx.Client) -> None:
    jobs = [(CHAT, BAD[0][1]) if number % 3 else (CHAT, COMPACT) for number in range(12)]
    jobs = [(path, {**fields, "seed": number}) for number, (path, fields) in enumerate(jobs)]
    with ThreadPoolExecutor(12) as pool:
        replies = list(pool.map(lambda job: client.post(job[0], json=body_of(*job)), jobs))
    assert [reply.status_code for reply in replies] == [400 if number % 3 else 200 for number in range(12)]
    for reply in replies[::3]:
        check(reply.json()["choices"][0]["message"]["content"], SCHEMA)


TOOL_SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Oslo"]}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "forecast", "parameters": TOOL_SCHEMA}}
ONE = {"type": "function", "function": {"name": "forecast"}}


@pytest.mark.parametrize("choice", ["required", ONE], ids=["required", "named"])
def test_a_chat_calls(client: httpx.Client, choice: Any) -> None:
    fields = {"tools": [TOOL], "tool_choice": choice, "parallel_tool_calls": False, "n": 2}
    whole = client.post(CHAT, json=body_of(CHAT, fields)).json()
    for answered in whole["choices"]:
        assert answered["finish_reason"] == ("tool_calls" if choice == "required" else "stop")
        (call,) = answered["message"]["tool_calls"]
        assert call["function"]["name"] == "forecast" and not answered["message"]["content"]
        check(call["function"]["arguments"], TOOL_SCHEMA)
    reply = client.post(CHAT, json=body_of(CHAT, {**fields, "n": 1, "stream": True}))
    pieces = [call["function"].get("arguments", "") for event in events_of(reply.text) for answered in event["choices"]
              for call in answered["delta"].get("tool_calls") or ()]  # fmt: skip
    assert len(pieces) > 2
    check("".join(pieces), TOOL_SCHEMA)


def test_a_response_calls(client: httpx.Client) -> None:
    tool = {"type": "function", "name": "forecast", "parameters": TOOL_SCHEMA, "strict": True}
    fields = {"tools": [tool], "tool_choice": {"type": "function", "name": "forecast"}}
    whole = client.post(RESPONSES, json=body_of(RESPONSES, fields)).json()
    (call,) = whole["output"]
    assert whole["status"] == "completed" and call["type"] == "function_call" and call["name"] == "forecast"
    check(call["arguments"], TOOL_SCHEMA)


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True},
                                    {"type": "tool", "name": "forecast"}])  # fmt: skip
def test_a_message_calls(client: httpx.Client, choice: dict[str, Any]) -> None:
    fields = {"tools": [{"name": "forecast", "input_schema": TOOL_SCHEMA}], "tool_choice": choice}
    whole = client.post(MESSAGES, json=body_of(MESSAGES, fields)).json()
    (block,) = whole["content"]
    assert whole["stop_reason"] == "tool_use" and block["type"] == "tool_use" and block["name"] == "forecast"
    jsonschema.validate(block["input"], TOOL_SCHEMA)


ARGUMENTS = {"type": "object", "properties": {"kind": {"enum": ["fox", "dog"]}, "ok": {"type": "boolean"}},
             "required": ["kind", "ok"], "additionalProperties": False}  # fmt: skip
TOOLS: dict[str, list[dict[str, Any]]] = {
    MESSAGES: [{"name": name, "input_schema": ARGUMENTS} for name in ("look", "hunt")],
    RESPONSES: [{"type": "function", "name": name, "parameters": ARGUMENTS} for name in ("look", "hunt")],
}
DEMANDS = [
    (MESSAGES, {"type": "any"}, {"look", "hunt"}),
    (MESSAGES, {"type": "any", "disable_parallel_tool_use": True}, {"look", "hunt"}),
    (MESSAGES, {"type": "tool", "name": "hunt"}, {"hunt"}),
    (RESPONSES, "required", {"look", "hunt"}),
    (RESPONSES, {"type": "function", "name": "hunt"}, {"hunt"}),
]


@pytest.mark.parametrize(("path", "choice", "names"), DEMANDS)
def test_a_demanded_call_is_valid(client: httpx.Client, path: str, choice: Any, names: set[str]) -> None:
    limit = {"max_tokens": 400} if path == MESSAGES else {"max_output_tokens": 400, "parallel_tool_calls": False}
    reply = client.post(path, json=body_of(path, {"tools": TOOLS[path], "tool_choice": choice, **limit}))
    assert reply.status_code == 200, reply.text
    if path == MESSAGES:
        calls = [(block["name"], block["input"]) for block in reply.json()["content"] if block["type"] == "tool_use"]
    else:
        items = [item for item in reply.json()["output"] if item["type"] == "function_call"]
        calls = [(item["name"], json.loads(item["arguments"])) for item in items]
    assert calls, reply.text
    for name, arguments in calls:
        assert name in names
        jsonschema.validate(arguments, ARGUMENTS)


def test_a_hostile_grammar_holds_up_nobody(client: httpx.Client) -> None:
    """Streams beside it get their tokens, whether it is refused or followed."""
    hostile = ["([a-z ]+)?" * 40, "([a-z ]*){1,50}[a-z ]*x", "[a-z ]{1,100000}"]

    def post(regex: str) -> int:
        fields = {"structured_outputs": {"regex": regex}, "max_tokens": 60}
        return client.post(COMPLETIONS, json=body_of(COMPLETIONS, fields), timeout=240).status_code

    with ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(post, regex) for regex in hostile]
        times = [time.monotonic()]
        while not all(reply.done() for reply in replies):
            body = body_of(COMPLETIONS, {"max_tokens": 100, "ignore_eos": True, "stream": True})
            with client.stream("POST", COMPLETIONS, json=body) as stream:
                times += [time.monotonic() for line in stream.iter_lines() if line]
    assert {reply.result() for reply in replies} <= {200, 400}
    assert max(later - sooner for sooner, later in pairwise(times)) < 60  # they stand still for minutes, or not at all

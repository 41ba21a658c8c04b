"""What real clients send, recorded and made small (tests/clients/bodies.py): each body is answered in its endpoint's
shape, with a text and with a call of a tool, and no field is ignored that was not ignored before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients.catalog import CLIENTS
from tests.clients.scripted import CONTEXT, save_model
from tests.server.helpers import FakeLLM, RunningApp, run_app

BODIES: list[dict[str, Any]] = json.loads((Path(__file__).parent / "client_bodies.json").read_text())
NO_TOOL = {"type": "none"}
TEXT = "Good day to you."
OPTIONS: dict[str, Any] = {
    "tool_call_parser": "hermes",
    "enable_auto_tool_choice": True,
    "reasoning_parser": "qwen3",
    "served_model_name": ["fake"],
}


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningApp]:
    model = save_model(tmp_path_factory.mktemp("model"))
    with run_app(FakeLLM(model, script=TEXT, max_model_len=CONTEXT), **OPTIONS) as running:
        yield running


def tool_names(body: dict[str, Any]) -> list[str]:
    """Of functions that the client runs, in the shapes of all endpoints."""
    kinds = (None, "function", "custom")
    tools = [tool for tool in body.get("tools") or () if tool.get("type") in kinds]
    return [tool.get("function", tool)["name"] for tool in tools]


def demands_a_call(body: dict[str, Any]) -> bool:
    choice = body.get("tool_choice")
    kind = choice.get("type") if isinstance(choice, dict) else choice
    return kind in ("required", "any", "tool", "function")


def ask(app: RunningApp, entry: dict[str, Any], script: str) -> httpx.Response:
    app.llm.script = script
    with app.client() as http:
        reply = http.post(entry["path"], json=entry["body"])
    assert reply.status_code == 200, reply.text
    named = {re.sub(r"\[\d+\]", "[]", name) for name in reply.headers.get("x-cadence-ignored", "").split(", ") if name}
    known = {re.sub(r"\[\d+\]", "[]", name) for name in entry["ignored"]}
    assert named <= known
    return reply


def events(reply: httpx.Response) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def answer_text(path: str, reply: httpx.Response, stream: bool) -> str:
    """As clients put it together."""
    if path.startswith("/v1/completions"):
        parts = events(reply) if stream else [reply.json()]
        return "".join(choice["text"] for part in parts for choice in part["choices"])
    if path.startswith("/v1/chat"):
        if not stream:
            return reply.json()["choices"][0]["message"]["content"]
        return "".join(c["delta"].get("content") or "" for part in events(reply) for c in part["choices"])
    if path.startswith("/v1/messages"):
        if not stream:
            return "".join(block["text"] for block in reply.json()["content"])
        return "".join(event.get("delta", {}).get("text", "") for event in events(reply))
    response = events(reply)[-1]["response"] if stream else reply.json()
    return "".join(part["text"] for item in response["output"] for part in item.get("content", ()))


def called(path: str, reply: httpx.Response, stream: bool) -> list[str]:
    """The names of the tools that the answer calls."""
    if path.startswith("/v1/chat"):
        kind = "delta" if stream else "message"
        choices = [c[kind] for part in (events(reply) if stream else [reply.json()]) for c in part["choices"]]
        calls = [call["function"] for choice in choices for call in choice.get("tool_calls") or ()]
        return [call["name"] for call in calls if call.get("name")]
    if path.startswith("/v1/messages"):
        blocks = (
            [e["content_block"] for e in events(reply) if "content_block" in e] if stream else reply.json()["content"]
        )
        return [block["name"] for block in blocks if block["type"] == "tool_use"]
    response = events(reply)[-1]["response"] if stream else reply.json()
    return [item["name"] for item in response["output"] if item["type"].endswith("_call")]


def name_of(entry: dict[str, Any]) -> str:
    return f"{entry['client']} {entry['path']}"


WITH_VALUES = [e for e in BODIES if e["path"].endswith(("/embeddings", "/rerank", "/embed"))]
NO_TEXT = ("/tokenize", "/detokenize", *(e["path"] for e in WITH_VALUES))
WITH_TEXT = [e for e in BODIES if e["path"] not in NO_TEXT and not demands_a_call(e["body"])]
WITH_TOOLS = [e for e in BODIES if tool_names(e["body"]) and e["body"].get("tool_choice") not in ("none", NO_TOOL)]


@pytest.mark.parametrize("entry", WITH_TEXT, ids=name_of)
def test_a_text(app: RunningApp, entry: dict[str, Any]) -> None:
    body, path = entry["body"], entry["path"]
    reply = ask(app, entry, TEXT)
    if "count_tokens" in path:
        assert reply.json()["input_tokens"] > 0
        return
    text = answer_text(path, reply, bool(body.get("stream")))
    assert text and (body.get("echo") or (TEXT * 100).startswith(text))


@pytest.mark.parametrize("entry", [e for e in WITH_TOOLS if "count_tokens" not in e["path"]], ids=name_of)
def test_a_call(app: RunningApp, entry: dict[str, Any]) -> None:
    body, path = entry["body"], entry["path"]
    name = tool_names(body)[0]
    script = "<tool_call>" + json.dumps({"name": name, "arguments": {"city": "Paris"}}) + "</tool_call>"
    assert called(path, ask(app, entry, script), bool(body.get("stream"))) == [name]


@pytest.mark.parametrize("entry", WITH_VALUES, ids=name_of)
def test_values(app: RunningApp, entry: dict[str, Any]) -> None:
    answer = ask(app, entry, TEXT).json()
    if entry["path"].endswith("/embed"):
        by_type = answer["embeddings"] if isinstance(answer["embeddings"], dict) else {"float": answer["embeddings"]}
        assert {len(vectors) for vectors in by_type.values()} == {2} == {len(answer["texts"])}
        return
    assert len(answer["results"] if entry["path"].endswith("/rerank") else answer["data"]) == 2


def test_every_client_is_among_them() -> None:
    """Those of the catalogue that ask with JSON; a recording is a form (`test_speech.py`), and a model that sees is
    needed for pictures (`test_images_real.py`)."""
    assert {entry["client"] for entry in BODIES} == {client.name for client in CLIENTS if not client.server}

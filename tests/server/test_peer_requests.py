"""Requests are judged and read as vLLM reads them: which values are taken, and what they do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.server.fakes_chat import MODEL, PROMPT
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve
from tests.server.test_peer_shapes import chunks

USER = [{"role": "user", "content": PROMPT}]
THINKS = "{{ messages[0].content }}|{{ reasoning_effort }}|{{ enable_thinking }}"


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve({"script": "One two three."}, trust_request_chat_template=True)


@pytest.fixture
def client(app: RunningApp) -> Iterator[httpx.Client]:
    with app.client() as client:
        yield client


def test_an_effort_of_reasoning_turns_thinking_on_or_off(client: httpx.Client) -> None:
    def prompt(**fields: Any) -> str:
        body = {"messages": USER, "max_tokens": 1, "chat_template": THINKS, "return_prompt_text": True, **fields}
        reply = client.post("/v1/chat/completions", json=body)
        assert reply.status_code == 200, reply.text
        return str(reply.json()["prompt_text"])

    for effort in ("minimal", "low", "medium", "high", "xhigh", "max"):
        assert prompt(reasoning_effort=effort) == f"{PROMPT}|{effort}|True"
    assert prompt(reasoning_effort="none") == f"{PROMPT}|none|False"
    assert prompt() == f"{PROMPT}||"
    chosen = prompt(reasoning_effort="high", chat_template_kwargs={"enable_thinking": False})
    assert chosen == f"{PROMPT}|high|False"


def test_messages_tell_the_template_by_name(serve: Serve) -> None:
    app = serve({"script": "Yes."}, chat_template=THINKS)
    with app.client() as client:
        for fields, written in (
            ({}, "||"),
            ({"chat_template_kwargs": {"enable_thinking": False}}, "||False"),
            ({"thinking": {"type": "adaptive"}}, "||True"),
            ({"thinking": {"type": "adaptive"}, "chat_template_kwargs": {"reasoning_effort": "low"}}, "|low|True"),
        ):
            body = {"model": MODEL, "messages": USER}
            told = client.post("/v1/messages/count_tokens", json={**body, **fields})
            text = client.post("/tokenize", json={"prompt": PROMPT + written, "add_special_tokens": False})
            assert told.json()["input_tokens"] == text.json()["count"], fields
            reply = client.post("/v1/messages", json={**body, **fields, "max_tokens": 3, "cache_salt": "mine"})
            assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text


CHAT = {"messages": USER, "max_tokens": 2}
BOTH = {"messages": USER, "continue_final_message": True, "add_generation_prompt": True}
REFUSED = [
    ("/tokenize", BOTH, "add_generation_prompt"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ("/v1/completions", {"prompt": "a", "response_format": {"type": "xml"}}, "response_format"),
    ("/v1/chat/completions", {**CHAT, "reasoning_effort": "extra_high"}, "reasoning_effort"),
    ("/v1/chat/completions", {**CHAT, "cache_salt": ""}, "cache_salt"),
    ("/v1/chat/completions", {**CHAT, "prompt_logprobs": "2"}, "prompt_logprobs"),
    ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": "2"}, "top_logprobs"),
    ("/v1/completions", {"prompt": "a", "logprobs": "2"}, "logprobs"),
    ("/v1/completions", {"prompt": "a", "cache_salt": ""}, "cache_salt"),
    ("/inference/v1/generate", {"token_ids": [1], "sampling_params": {}, "cache_salt": ""}, "cache_salt"),
    ("/v1/chat/completions", {**CHAT, "logit_bias": {"bad1": 1, "5": 1, "bad2": 2}}, "logit_bias"),
]


@pytest.mark.parametrize(("path", "body", "param"), REFUSED)
def test_values_that_nobody_can_mean(client: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    reply = client.post(path, json=body)
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), reply.text


TAKEN = [
    ("/tokenize", {**BOTH, "add_generation_prompt": False}),
    ("/tokenize", {"messages": USER, "continue_final_message": True}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "response_format": {"type": "text"}}),
    ("/v1/completions", {"prompt": "a", "max_tokens": 1, "cache_salt": None}),
    ("/v1/chat/completions", {**CHAT, "logprobs": "true", "max_tokens": "2"}),
]


@pytest.mark.parametrize(("path", "body"), TAKEN)
def test_values_that_ask_for_what_there_is(client: httpx.Client, path: str, body: dict[str, Any]) -> None:
    reply = client.post(path, json=body)
    assert reply.status_code == 200 and "x-cadence-ignored" not in reply.headers, reply.text


def test_all_wrong_keys_are_named_at_once(client: httpx.Client) -> None:
    told = client.post("/v1/completions", json={"prompt": "a", "logit_bias": {"bad1": 1, "5": 1, "bad2": 2}}).text
    assert "bad1" in told and "bad2" in told


def test_a_line_of_billing_is_no_part_of_the_prompt(client: httpx.Client) -> None:
    """It differs from request to request: with it no prompt of a coding agent would be found in the prefix cache."""
    billing = {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.37; cch=d1d48;"}
    system = [{"type": "text", "text": "Be brief."}]

    def count(**fields: Any) -> tuple[int, str]:
        reply = client.post("/v1/messages/count_tokens", json={"messages": USER, **fields})
        return reply.json()["input_tokens"], reply.headers.get("x-cadence-ignored", "")

    plain, _ = count(system=system)
    assert count(system=[billing, *system]) == (plain, "system")
    assert count(system=[*system, billing]) == (plain, "system")
    assert count(system=[billing]) == (count()[0], "system")
    told = count(messages=[{"role": "system", "content": billing["text"]}, *USER])
    assert told == (count()[0], "messages[0].content")
    assert count(system="x-anthropic-billing: not it")[0] > count()[0]


def test_an_empty_salt_of_a_message(client: httpx.Client) -> None:
    reply = client.post("/v1/messages", json={**CHAT, "cache_salt": ""})
    assert reply.status_code == 400 and "cache_salt" in reply.json()["error"]["message"]


def test_ids_of_all_chunks_are_the_ids_of_the_answer(app: RunningApp, client: httpx.Client) -> None:
    fields = {"messages": USER, "return_token_ids": True}
    whole = client.post("/v1/chat/completions", json=fields).json()["choices"][0]["token_ids"]
    first, *rest = chunks(app, "/v1/chat/completions", **fields)
    assert first["prompt_token_ids"] and "token_ids" not in first["choices"][0]
    assert [token for chunk in rest for token in chunk["choices"][0]["token_ids"]] == whole

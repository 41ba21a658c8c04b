"""/v1/messages as Anthropic's client sees it. Without a script the fake model repeats its prompt."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from cadence.entrypoints.server.routes import messages as route
from tests.server.fakes_chat import MODEL, FailingLLM
from tests.server.helpers import RunningApp

if TYPE_CHECKING:  # takes two seconds in every process that collects tests
    import anthropic

Serve = Callable[..., RunningApp]
USER = {"role": "user", "content": "Hello there"}
TOOLS: Any = [
    {
        "name": "get_weather",
        "description": "The weather in a city",
        "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
    }
]
SEARCH = {"type": "web_search_20250305", "name": "web_search"}
CALL = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CALLING = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
THINKING = {"reasoning_parser": "qwen3"}


def anthropic_client(app: RunningApp, api_key: str = "none") -> anthropic.Anthropic:
    from anthropic import Anthropic

    return Anthropic(base_url=app.url, api_key=api_key, max_retries=0)


def ask(client: anthropic.Anthropic, **fields: Any) -> Any:
    return client.messages.create(**{"model": MODEL, "max_tokens": 300, "messages": [USER], **fields})


def test_text_in_text_out(serve: Serve) -> None:
    sampling = {"temperature": 0.5, "top_p": 0.9, "top_k": 5}
    answer = ask(anthropic_client(serve({"script": "Good day to you."})), extra_body=sampling)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert [block.text for block in answer.content] == ["Good day to you."]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None) and answer.id.startswith("msg_")
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0


def test_why_it_stopped(serve: Serve) -> None:
    client = anthropic_client(serve({"script": "Good day to you."}))
    assert ask(client, max_tokens=2).stop_reason == "max_tokens"
    stopped = ask(client, stop_sequences=["to you", "zzz"])
    assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "to you")
    assert stopped.content[0].text == "Good day "


def test_blocks_reach_the_model(serve: Serve) -> None:
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": ""},
                {"type": "text", "text": "Looking."},
                {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Köln"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no", "is_error": True},
                {"type": "text", "text": "and?"},
            ],
        },
    ]
    system = [{"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}}]
    answer = ask(anthropic_client(serve()), system=system, messages=messages)
    told = "system: Be kind.\nuser: one\ntwo\nassistant: Looking.\ntool: Error: no\nuser: and?\nassistant: "
    assert answer.content[0].text.startswith(told)


def test_an_answer_can_be_begun_for_the_model(serve: Serve) -> None:
    messages = [USER, {"role": "assistant", "content": "It is"}]
    answer = ask(anthropic_client(serve()), messages=messages)
    assert answer.content[0].text.startswith("user: Hello there\nassistant: It is")
    assert not answer.content[0].text.startswith("user: Hello there\nassistant: It is\n")


def test_stream_events_in_order(serve: Serve) -> None:
    client = anthropic_client(serve({"script": "Good day to you."}))
    with client.messages.stream(model=MODEL, max_tokens=300, messages=[USER]) as stream:  # type: ignore[list-item]
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == "Good day to you."
    assert final.stop_reason == "end_turn" and final.usage.output_tokens > 0 and final.usage.input_tokens > 0
    kinds = [event.type for event in ask(client, stream=True)]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_a_ping_is_sent(serve: Serve) -> None:
    body = {"model": MODEL, "max_tokens": 5, "messages": [USER], "stream": True}
    with serve().client() as http:
        text = http.post("/v1/messages", json=body).text
    assert 'event: ping\ndata: {"type":"ping"}' in text and text.endswith('data: {"type":"message_stop"}\n\n')


def test_silence_is_filled_with_pings(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(route, "PING_S", 0.05)
    body = {"model": MODEL, "max_tokens": 3, "messages": [USER], "stream": True}
    with serve({"delay": 0.2}).client() as http:
        text = http.post("/v1/messages", json=body).text
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert kinds.count("ping") >= 4 and kinds[0] == "message_start" and kinds[-1] == "message_stop"
    assert kinds.count("content_block_delta") >= 2


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_thoughts_are_blocks(serve: Serve, stream: bool) -> None:
    client = anthropic_client(serve({"script": f"<think>Hm.</think>{CALL}{CALL}"}, **CALLING, **THINKING))
    fields: Any = {"model": MODEL, "max_tokens": 300, "messages": [USER], "tools": TOOLS}
    if stream:
        with client.messages.stream(**fields) as events:
            answer: Any = events.get_final_message()
    else:
        answer = client.messages.create(**fields)
    assert [block.type for block in answer.content] == ["thinking", "text", "tool_use", "text", "tool_use"]
    assert answer.content[0].thinking == "Hm." and answer.content[1].text == "Let me look.\n"
    assert answer.content[2].name == "get_weather" and answer.content[2].input == {"city": "Köln"}
    assert answer.content[2].id != answer.content[4].id and answer.stop_reason == "tool_use"


def test_one_call_at_a_time(serve: Serve) -> None:
    client = anthropic_client(serve({"script": CALL + CALL}, **CALLING))
    answer = ask(client, tools=TOOLS, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert [block.type for block in answer.content].count("tool_use") == 1


def test_a_call_that_was_cut_off_is_not_one(serve: Serve) -> None:
    script = '<tool_call>{"name": "get_weather", "arguments": {"city": "Köl'
    answer = ask(anthropic_client(serve({"script": script}, **CALLING)), tools=TOOLS)
    assert [block.type for block in answer.content] == ["text"]
    assert answer.content[0].text == script


@pytest.mark.parametrize("choice", [{"type": "any"}, {"type": "tool", "name": "get_weather"}])
def test_calls_can_be_demanded(serve: Serve, choice: dict[str, str]) -> None:
    from anthropic import BadRequestError

    app = serve({"script": CALL}, **CALLING)
    client = anthropic_client(app)
    assert ask(client, tools=TOOLS, tool_choice=choice).stop_reason == "tool_use"
    app.llm.script = "I would rather not."
    with pytest.raises(BadRequestError):
        ask(client, tools=TOOLS, tool_choice=choice)
    assert ask(client, tools=TOOLS, tool_choice={"type": "none"}).stop_reason == "end_turn"


def test_tools_that_the_server_would_run_are_named_as_ignored(serve: Serve) -> None:
    client = anthropic_client(serve({"script": CALL}, **CALLING))
    reply = client.messages.with_raw_response.create(
        model=MODEL,
        max_tokens=300,
        messages=[USER],
        tools=[SEARCH, *TOOLS],  # type: ignore[list-item]
    )
    assert reply.headers["x-cadence-ignored"] == "tools[0]" and reply.parse().stop_reason == "tool_use"


def test_threads_are_refused_in_words_that_clients_recover_from(serve: Serve) -> None:
    with serve({"script": "ok"}).client() as http:
        body = {"max_tokens": 5, "messages": [USER], "thread": {"type": "create"}}
        reply = http.post("/v1/messages", json=body)
        assert reply.status_code == 400 and "thread is not supported" in reply.json()["error"]["message"]
        assert reply.json()["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_tokens_are_counted(serve: Serve) -> None:
    client = anthropic_client(serve({"script": "ok"}))
    fields: Any = {"model": MODEL, "messages": [USER], "system": "Be kind."}
    counted = client.messages.count_tokens(**fields).input_tokens
    usage = client.messages.create(max_tokens=5, **fields).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_what_anthropics_servers_would_do_is_left_out_and_named(serve: Serve) -> None:
    """As coding agents send it: tools of the server, encrypted thoughts, results of searches that were never here."""
    server_tool = {"type": "web_search_20250305", "name": "web_search", "max_uses": 3}
    deferred = {**TOOLS[0], "defer_loading": True, "cache_control": {"type": "ephemeral"}}
    answer = [
        {"type": "redacted_thinking", "data": "abc"},
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "server_tool_use", "id": "1", "name": "web_search", "input": {}},
        {"type": "web_search_tool_result", "tool_use_id": "1", "content": []},
        {"type": "text", "text": "Well.", "citations": None},
        {"type": "tool_use", "id": "2", "name": "get_weather", "input": {"city": "Oslo"}},
    ]
    result = [{"type": "text", "text": "sunny"}, {"type": "tool_reference", "tool_name": "get_weather"}]
    paper = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "It is warm."}}
    found = {"type": "search_result", "title": "News", "source": "x", "content": [{"type": "text", "text": "Snow."}]}
    messages = [
        USER,
        {"role": "assistant", "content": answer},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "2", "content": result}, paper, found]},
    ]
    app = serve(tool_call_parser="hermes", enable_auto_tool_choice=True)
    body = {"model": MODEL, "max_tokens": 200, "messages": messages, "tools": [server_tool, deferred]}
    body["thinking"] = {"type": "enabled", "budget_tokens": 2000, "display": "omitted"}
    with app.client() as http:
        reply = http.post("/v1/messages", json=body)
    assert reply.status_code == 200, reply.text
    said = reply.json()["content"][0]["text"]  # the fake repeats its prompt
    assert "Well." in said and "sunny" in said and "It is warm.\nNews\nSnow." in said
    assert set(reply.headers["x-cadence-ignored"].split(", ")) == {
        "tools[0]", "tools[1].defer_loading", "thinking.budget_tokens", "thinking.display", "messages[1].content[0]",
        "messages[1].content[2]", "messages[1].content[3]", "messages[2].content[0].content[1]",
    }  # fmt: skip


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"messages": []}, "messages"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": None}, "max_tokens"),
    ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
        "messages[0].content[0].source.type",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://a/b.png"}}]}
            ]
        },
        "messages[0].content[0].type",
    ),
    ({"messages": [{"role": "user", "content": [3]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "x", "name": "f"}]}]}, "input"),
    ({"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]}, "tool_use_id"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "url"}}]}]}, "reads no files"),
    ({"tools": [{"type": "web_search_20250305", "name": "w"}], "tool_choice": {"type": "any"}}, "no tools"),
    ({"thinking": {"type": "enabled", "budget_tokens": "many"}}, "thinking.budget_tokens"),
    ({"max_tokens": 32_000}, "This model's maximum context length is 1024 tokens. However, you requested 32"),
    ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
    ({"tools": [SEARCH], "tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tools": [SEARCH], "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice.name"),
    ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
    ({"tools": TOOLS}, "tool"),  # this server has no tool parser
    ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ({"tool_choice": {"type": "tool", "name": "x"}}, "tool_choice.name"),
    ({"tool_choice": {"type": "maybe"}}, "tool_choice.type"),
    ({"temperature": 1.5}, "temperature"),
    ({"stop_sequences": [""]}, "stop_sequences"),
    ({"thinking": {"type": "deep"}}, "thinking.type"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
]


def test_bad_input_is_named_in_anthropics_words(serve: Serve) -> None:
    with serve().client() as http:
        for fields, name in REFUSED:
            reply = http.post("/v1/messages", json={"model": MODEL, "max_tokens": 5, "messages": [USER], **fields})
            body = reply.json()
            assert reply.status_code == 400 and body["type"] == "error", (fields, reply.text)
            assert body["error"]["type"] == "invalid_request_error" and name in body["error"]["message"], (fields, body)
        missing = http.post("/v1/messages", json={"model": "other", "max_tokens": 5, "messages": [USER]})
        assert (missing.status_code, missing.json()["error"]["type"]) == (404, "not_found_error")
        assert http.post("/v1/messages", content=b"{").json()["type"] == "error"
        assert http.post("/v1/messages/count_tokens", json={"messages": []}).json()["type"] == "error"


def test_an_error_in_the_middle_is_told(serve: Serve, fake_model: Any) -> None:
    from anthropic import APIError

    app = serve(FailingLLM(fake_model, after=2))
    body = {"model": MODEL, "max_tokens": 9, "messages": [USER], "stream": True}
    with app.client() as http:
        blocks = http.post("/v1/messages", json=body).text.strip().split("\n\n")
    kind, _, data = blocks[-1].partition("\n")
    assert kind == "event: error" and json.loads(data.removeprefix("data: "))["type"] == "error"
    with pytest.raises(APIError):
        list(ask(anthropic_client(app), stream=True))


def test_leaving_ends_the_request(serve: Serve) -> None:
    app = serve({"delay": 0.02})
    stream = ask(anthropic_client(app), stream=True)
    next(iter(stream))
    stream.close()
    app.settle()
    assert len(app.llm.aborted) == 1 and app.state.admission.aborted == 1


def test_keys_are_asked_for(serve: Serve) -> None:
    from anthropic import AuthenticationError

    app = serve({"script": "ok"}, api_key=["secret"])
    with pytest.raises(AuthenticationError):
        ask(anthropic_client(app))
    assert ask(anthropic_client(app, "secret")).content[0].text == "ok"

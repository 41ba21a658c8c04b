"""/v1/responses as coding agents use it: namespaces, custom tools, tools of the server's own, items sent back."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.responses.response_messages import (
    seal_reasoning,
    to_messages,
    unseal_reasoning,
)
from cadence.entrypoints.server.protocol.responses.response_tools import (
    ResponseTools,
    custom_input,
    flat_name,
)
from tests.server.fakes_chat import MODEL, openai_client
from tests.server.test_responses import CALLING, THINKING, Serve, ask

HEADER = "x-cadence-ignored"
OBJECT = {"type": "object", "properties": {}}
EXEC = {"type": "function", "name": "exec_command", "description": "Runs it", "strict": False, "parameters": OBJECT}
AGENTS = {
    "type": "namespace",
    "name": "multi_agent_v1",
    "description": "Agents beside this one",
    "tools": [{"type": "function", "name": "close_agent", "description": "Ends one", "parameters": OBJECT}],
}
PATCH = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edits files",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: begin hunk+ end"},
}
TOOLS: list[dict[str, Any]] = [EXEC, AGENTS, PATCH, {"type": "web_search", "external_web_access": True}]
# The shape of the first request of a real Codex CLI.
FIRST: dict[str, Any] = {
    "model": MODEL,
    "instructions": "You are a coding agent.",
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "Be careful."}]},
        {"type": "message", "role": "user", "id": "msg_1", "content": [{"type": "input_text", "text": "List files."}]},
    ],
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"summary": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0199",
    "client_metadata": {"session": "1"},
    "max_output_tokens": 200,
}


def call(name: str, arguments: dict[str, Any]) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def events_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_a_coding_agents_first_request(serve: Serve) -> None:
    app = serve({"script": f"<think>Hm.</think>{call('exec_command', {'cmd': 'ls'})}"}, **CALLING, **THINKING)
    with app.client() as http:
        reply = http.post("/v1/responses", json=FIRST)
        assert reply.status_code == 200, reply.text
        named = {"tools[3]", "tools[2].format", "client_metadata", "prompt_cache_key"}
        assert set(reply.headers[HEADER].split(", ")) == named
        reasoning, made = events_of(reply.text)[-1]["response"]["output"]
        assert (made["type"], made["name"]) == ("function_call", "exec_command") and "namespace" not in made
        assert reasoning["encrypted_content"] and reasoning["content"][0]["text"] == "Hm."
        # The second request holds what the first one answered, with nothing but the sealed reasoning.
        app.llm.script = None
        back = [{**reasoning, "content": None}, made]
        back += [{"type": "function_call_output", "call_id": made["call_id"], "output": "a.txt"}]
        reply = http.post("/v1/responses", json={**FIRST, "input": [*FIRST["input"], *back]})
    assert reply.status_code == 200, reply.text
    said = events_of(reply.text)[-1]["response"]["output"][-1]["content"][0]["text"]
    assert "user: List files." in said and "tool: a.txt" in said


def test_calls_lead_back_to_their_namespace(serve: Serve) -> None:
    app = serve({"script": call("multi_agent_v1__close_agent", {"id": "7"})}, **CALLING)
    answer = ask(openai_client(app), tools=TOOLS)
    (made,) = answer.output
    assert (made.type, made.name, made.namespace) == ("function_call", "close_agent", "multi_agent_v1")
    (message,) = to_messages([made.model_dump()], 0, None, Ignored())
    assert message["tool_calls"][0]["function"]["name"] == "multi_agent_v1__close_agent"


@pytest.mark.parametrize("stream", [False, True])
def test_custom_tools_get_text(serve: Serve, stream: bool) -> None:
    text = '*** Begin Patch\n"x"\n*** End Patch'
    app = serve({"script": call("apply_patch", {"input": text})}, **CALLING)
    answer = ask(openai_client(app), tools=TOOLS, stream=stream)
    if stream:
        events = list(answer)
        kinds = [event.type for event in events]
        start = kinds.index("response.output_item.added")
        assert kinds[start : start + 4] == [
            "response.output_item.added",
            "response.custom_tool_call_input.delta",
            "response.custom_tool_call_input.done",
            "response.output_item.done",
        ]
        assert events[start + 1].delta == events[start + 2].input == text
        answer = events[-1].response
    (made,) = answer.output
    assert (made.type, made.name, made.input) == ("custom_tool_call", "apply_patch", text)
    assert answer.status == "completed"


def test_a_custom_call_and_its_output_reach_the_model() -> None:
    items: list[dict[str, Any]] = [
        {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "a\nb"},
        {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
        {"type": "local_shell_call", "call_id": "c2", "action": {"type": "exec", "command": ["ls"]}},
        {"type": "local_shell_call_output", "id": "c2", "output": "a.txt"},
    ]  # fmt: skip
    patch, done, shell, listed = to_messages(items, 0, None, Ignored())
    assert patch["tool_calls"][0]["function"] == {"name": "apply_patch", "arguments": '{"input":"a\\nb"}'}
    assert (done["tool_call_id"], done["content"]) == ("c1", "done")
    assert shell["tool_calls"][0]["function"] == {"name": "local_shell", "arguments": '{"command":["ls"]}'}
    assert (listed["tool_call_id"], listed["content"]) == ("c2", "a.txt")


def test_what_the_model_is_offered() -> None:
    ignored = Ignored()
    deferred = {**AGENTS, "name": "mcp__files__", "tools": [{**AGENTS["tools"][0], "defer_loading": True}]}
    plain = {"type": "namespace", "name": "functions", "tools": [{**PATCH, "name": "edit", "format": {"type": "text"}}]}
    tools = ResponseTools([*TOOLS, deferred, plain], ignored)
    names = [tool["function"]["name"] for tool in tools.chat]
    assert names == ["exec_command", "multi_agent_v1__close_agent", "apply_patch", "mcp__files__close_agent", "edit"]
    assert ignored.names == ["tools[2].format", "tools[3]", "tools[4].tools[0].defer_loading"]
    parameters = tools.chat[2]["function"]["parameters"]
    assert parameters["required"] == ["input"] and "start: begin" in parameters["properties"]["input"]["description"]
    assert (tools.origin("edit").kind, tools.origin("edit").namespace) == ("custom_tool_call", "functions")
    assert tools.origin("nobody").kind == "function_call"


def test_tools_and_messages_of_agents_in_the_input(serve: Serve) -> None:
    app = serve({"script": call("close_agent", {"id": "7"})}, **CALLING)
    items: Any = [
        {"type": "additional_tools", "role": "developer", "tools": AGENTS["tools"]},
        {"type": "agent_message", "author": "a", "recipient": "b", "content": [{"type": "input_text", "text": "hi"}]},
    ]
    (made,) = ask(openai_client(app), input=items).output
    assert (made.type, made.name) == ("function_call", "close_agent")
    assert to_messages(items, 0, None, Ignored()) == [{"role": "user", "content": "a: hi"}]
    with pytest.raises(openai.BadRequestError) as refused:
        ask(openai_client(app), input=[{"type": "additional_tools", "tools": 3}])
    assert refused.value.param == "input[0].tools"


def test_tool_choice_in_all_its_shapes() -> None:
    def choose(chosen: Any, tools: list[dict[str, Any]] = TOOLS) -> tuple[str, list[str]]:
        table = ResponseTools(tools, Ignored())
        return table.choose(chosen), [tool["function"]["name"] for tool in table.chat]

    everything = ["exec_command", "multi_agent_v1__close_agent", "apply_patch"]
    for word in (None, "auto"):
        assert choose(word) == ("auto", everything)
        assert choose(word, [{"type": "web_search"}]) == ("none", [])
    assert choose({"type": "custom", "name": "apply_patch"})[0] == "apply_patch"
    closing = {"type": "function", "name": "close_agent", "namespace": "multi_agent_v1"}
    assert choose(closing)[0] == "multi_agent_v1__close_agent"
    assert choose({"type": "allowed_tools", "mode": "required", "tools": [closing]}) == ("required", everything[1:2])
    for wrong in ("some", {"type": "function", "name": "close_agent"}, {"type": "allowed_tools", "mode": "auto"}):
        with pytest.raises(InvalidRequestError):
            choose(wrong)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "a"}', "a"), ('{"patch": "a"}', "a"), ('{"a": 1}', '{"a": 1}'), ("[", "["), ('"a"', '"a"')],
)
def test_the_text_of_a_custom_call(arguments: str, text: str) -> None:
    assert custom_input(arguments) == text


def test_names_of_namespaces() -> None:
    assert flat_name("a", "") == flat_name("a", "functions") == "a"
    assert flat_name("a", "n") == "n__a" and flat_name("a", "mcp__n__") == "mcp__n__a" and flat_name("_a", "n") == "n_a"


def test_reasoning_comes_back_in_any_form() -> None:
    assert unseal_reasoning(seal_reasoning("Hm. ü")) == "Hm. ü" and unseal_reasoning("gAAAAB") is None
    assert unseal_reasoning("cadence-reasoning:!") is None
    answer = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Yes"}]}
    ignored = Ignored()
    forms: list[dict[str, Any]] = [
        {"content": [{"type": "reasoning_text", "text": "Hm."}], "summary": [], "encrypted_content": None},
        {"content": None, "summary": [], "encrypted_content": seal_reasoning("Hm.")},
        {"summary": [{"type": "summary_text", "text": "Hm."}]},
    ]
    for form in forms:
        (message,) = to_messages([{"type": "reasoning", "id": "rs_1", **form}, answer], 0, None, ignored)
        assert (message["content"], message["reasoning_content"]) == ("Yes", "Hm.")
    assert not ignored.names
    foreign = [{"type": "reasoning", "summary": [], "encrypted_content": "gAAAAB"}, {"type": "web_search_call"}, answer]
    (message,) = to_messages(foreign, 0, None, ignored)
    assert ignored.names == ["input[0].encrypted_content", "input[1]"] and "reasoning_content" not in message


def test_references_to_stored_items(serve: Serve) -> None:
    app = serve({"script": "First."})
    client = openai_client(app)
    first = ask(client, input=[{"type": "message", "role": "user", "content": "one", "id": "msg_mine"}])
    app.llm.script = None
    items: Any = [{"type": "item_reference", "id": name} for name in ("msg_mine", first.output[0].id)]
    second = ask(client, input=[*items, {"role": "user", "content": "two"}], max_output_tokens=300)
    assert second.output_text.startswith("user: one\nassistant: First.\nuser: two\nassistant: ")
    client.responses.delete(second.id)
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError, match="not found"):
        ask(client, input=items)


def test_references_do_not_make_a_prompt_without_end(serve: Serve) -> None:
    app = serve({"script": "First."}, max_body_bytes=10_000)
    client = openai_client(app)
    ask(client, input=[{"type": "message", "role": "user", "content": "x" * 800, "id": "msg_big"}], max_output_tokens=1)
    with pytest.raises(openai.BadRequestError, match="larger than the limit"):
        ask(client, input=[{"type": "item_reference", "id": "msg_big"}] * 100)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_where_they_are_asked_for(serve: Serve, stream: bool) -> None:
    client = openai_client(serve({"script": "Good day."}))
    answer = ask(client, include=["message.output_text.logprobs"], top_logprobs=2, stream=stream)
    if stream:
        events = list(answer)
        answer = events[-1].response
        deltas = [entry for event in events if event.type == "response.output_text.delta" for entry in event.logprobs]
        assert "".join(entry.token for entry in deltas) == "Good day."
    entries = answer.output[0].content[0].logprobs
    assert "".join(entry.token for entry in entries).startswith("Good day.")
    assert all(entry.logprob <= 0 and len(entry.top_logprobs) <= 2 for entry in entries)
    assert not ask(client).output[0].content[0].logprobs


def test_what_cannot_be_included_is_named(serve: Serve) -> None:
    with serve().client() as http:
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 3}
        reply = http.post("/v1/responses", json={**body, "include": ["file_search_call.results"]})
        assert reply.status_code == 200 and reply.headers[HEADER] == "include[0]"

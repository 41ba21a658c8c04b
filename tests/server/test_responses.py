"""/v1/responses as the official client sees it. Without a script the fake model repeats its prompt."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import httpx
import openai
import pytest

from cadence.core.contract.response_messages import StoredResponse
from cadence.entrypoints.server.responses.store import ResponseStore
from tests.server.fakes_chat import MODEL, FailingLLM, openai_client
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
TOOLS: Any = [
    {
        "type": "function",
        "name": "get_weather",
        "description": "The weather in a city",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
        "strict": False,
    }
]
CALL = 'Let me look.\n<tool_call>\n{"name": "get_weather", "arguments": {"city": "Köln"}}\n</tool_call>'
CALLING = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}
THINKING = {"reasoning_parser": "qwen3"}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Hello there", **fields})


def told(client: openai.OpenAI, **fields: Any) -> str:
    """The prompt the model got, which it repeats, up to where its own turn begins."""
    return ask(client, **{"max_output_tokens": 300, **fields}).output_text.partition("assistant: ")[0]


def test_text_in_text_out(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day to you."}))
    answer = ask(client, instructions="Be kind.", metadata={"a": "b"}, temperature=0.5, top_p=0.9, max_output_tokens=50)
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.status == "completed"
    assert answer.output_text == "Good day to you." and answer.model == MODEL
    (message,) = answer.output
    assert (message.type, message.role, message.status) == ("message", "assistant", "completed")
    assert answer.metadata == {"a": "b"} and answer.instructions == "Be kind."
    assert (answer.temperature, answer.top_p, answer.max_output_tokens) == (0.5, 0.9, 50)
    assert answer.usage.input_tokens > 0 and answer.usage.output_tokens > 0
    assert answer.usage.total_tokens == answer.usage.input_tokens + answer.usage.output_tokens


def test_input_items_page_by_page(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day to you."}))
    first = ask(client, input="one")
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "two"}]}, {"role": "user", "content": "three"}]
    second = ask(client, input=parts, previous_response_id=first.id)
    items = list(client.responses.input_items.list(second.id, order="asc", limit=1))  # the client asks for every page
    assert [item.content[0].text for item in items] == ["one", "Good day to you.", "two", "three"]
    assert [item.role for item in items] == ["user", "assistant", "user", "user"]
    assert len({item.id for item in items}) == 4
    newest = client.responses.input_items.list(second.id, limit=2)
    assert [item.content[0].text for item in newest.data] == ["three", "two"] and newest.has_more
    for options in ({"limit": 0}, {"limit": 101}, {"after": "nope"}, {"order": "up"}):
        with pytest.raises(openai.BadRequestError):
            client.responses.input_items.list(second.id, **options)
    with pytest.raises(openai.NotFoundError):
        client.responses.input_items.list("resp_nope")


def test_what_is_cut_off_says_so(serve: Serve) -> None:
    answer = ask(openai_client(serve({"script": "Good day to you."})), max_output_tokens=2)
    assert answer.status == "incomplete" and answer.incomplete_details.reason == "max_output_tokens"
    assert answer.output[0].status == "incomplete"


def test_items_reach_the_model(serve: Serve) -> None:
    client = openai_client(serve())
    prompt = told(
        client,
        instructions="Be kind.",
        input=[
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "one"}, {"type": "input_text", "text": "two"}]},
            {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
    )
    assert prompt == "system: Be kind.\n\nBe brief.\nuser: one\ntwo\n"
    whole = ask(client, max_output_tokens=300, input=[
        {"type": "function_call", "call_id": "c1", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
    ])  # fmt: skip
    assert whole.output_text.startswith("assistant: \ntool: sunny\nassistant: ")


def test_going_on_from_an_earlier_response(serve: Serve) -> None:
    app = serve({"script": "First."})
    client = openai_client(app)
    first = ask(client, input="one", instructions="Not carried over.")
    app.llm.script = None
    second = ask(client, input="two", previous_response_id=first.id, max_output_tokens=300)
    assert second.output_text.startswith("user: one\nassistant: First.\nuser: two\nassistant: ")
    assert second.previous_response_id == first.id
    with pytest.raises(openai.BadRequestError, match="not found") as refused:
        ask(client, previous_response_id="resp_nope")
    assert refused.value.param == "previous_response_id"
    unkept = ask(client, store=False, max_output_tokens=3)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(unkept.id)


def test_stored_ones_can_be_read_and_deleted(serve: Serve) -> None:
    client = openai_client(serve({"script": "Kept."}))
    made = ask(client)
    assert client.responses.retrieve(made.id) == made
    with pytest.raises(openai.BadRequestError, match="only what is in progress"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for call in (client.responses.retrieve, client.responses.cancel, client.responses.delete):
        with pytest.raises(openai.NotFoundError):
            call(made.id)


def test_stream_events_in_order(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day to you."}))
    events = list(ask(client, stream=True))
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1 and kinds[4 : 4 + len(deltas)] == ["response.output_text.delta"] * len(deltas)
    assert kinds[4 + len(deltas) :] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert "".join(event.delta for event in deltas) == "Good day to you."
    final = events[-1].response
    assert final.output_text == "Good day to you." and final.usage.output_tokens > 0
    assert {event.item_id for event in deltas} == {final.output[0].id}
    assert client.responses.retrieve(final.id) == final


def test_the_clients_own_stream_helper(serve: Serve) -> None:
    client = openai_client(serve({"script": f"<think>Hm.</think>{CALL}"}, **CALLING, **THINKING))
    with client.responses.stream(model=MODEL, input="Weather?", tools=TOOLS) as stream:
        for _ in stream:
            pass
        final = stream.get_final_response()
    assert [item.type for item in final.output] == ["reasoning", "message", "function_call"]
    assert final.output_text == "Let me look.\n"


@pytest.mark.parametrize("stream", [False, True])
def test_calls_and_thoughts_are_items(serve: Serve, stream: bool) -> None:
    client = openai_client(serve({"script": f"<think>Hm.</think>{CALL}"}, **CALLING, **THINKING))
    answer = ask(client, tools=TOOLS, stream=stream)
    if stream:
        events = list(answer)
        pieces = [event.delta for event in events if event.type == "response.function_call_arguments.delta"]
        thoughts = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
        assert len(pieces) > 1 and json.loads("".join(pieces)) == {"city": "Köln"} and "".join(thoughts) == "Hm."
        answer = events[-1].response
    reasoning, message, call = answer.output
    assert reasoning.type == "reasoning" and reasoning.content[0].text == "Hm."
    assert message.content[0].text == "Let me look.\n"
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments) == {"city": "Köln"} and call.call_id.startswith("call_")
    assert answer.status == "completed" and answer.usage.output_tokens_details.reasoning_tokens > 0


def test_a_whole_round_with_a_tool(serve: Serve) -> None:
    app = serve({"script": CALL}, **CALLING)
    client = openai_client(app)
    first = ask(client, input="Weather?", tools=TOOLS)
    call = first.output[-1]
    app.llm.script = "Sunny."
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 21 °C"}
    second = ask(client, input=[result], previous_response_id=first.id, tools=TOOLS)
    assert second.output_text == "Sunny." and second.status == "completed"
    third = ask(client, input=[{"role": "user", "content": "Thanks"}], previous_response_id=second.id)
    assert third.output_text == "Sunny."


def test_a_running_one_can_be_cancelled(serve: Serve) -> None:
    app = serve({"delay": 0.02})
    client = openai_client(app)
    stream = ask(client, stream=True, max_output_tokens=500)
    first = next(iter(stream))
    assert client.responses.retrieve(first.response.id).status == "in_progress"
    cancelling = threading.Thread(target=lambda: client.responses.cancel(first.response.id))
    cancelling.start()
    last = list(stream)[-1]
    cancelling.join()
    assert last.type == "response.incomplete" and last.response.status == "cancelled"
    assert client.responses.retrieve(first.response.id).status == "cancelled"
    app.settle()
    assert app.llm.aborted and app.state.admission.in_flight == 0


def test_leaving_ends_the_request(serve: Serve) -> None:
    app = serve({"delay": 0.02})
    stream = ask(openai_client(app), stream=True, max_output_tokens=500)
    response_id = next(iter(stream)).response.id
    stream.close()
    app.settle()
    (aborted,) = app.llm.aborted
    assert aborted.startswith(response_id) and app.state.admission.aborted == 1
    with app.client() as http:
        assert http.get(f"/v1/responses/{response_id}").json()["status"] == "cancelled"


def test_an_error_in_the_middle_is_told(serve: Serve, fake_model: Any) -> None:
    app = serve(FailingLLM(fake_model, after=2))
    client = openai_client(app)
    events = list(ask(client, stream=True, max_output_tokens=9))
    assert [event.type for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1].response.status == "failed" and events[-1].response.error.message
    assert events[-1].response.error.code == "server_error"
    app.settle()
    assert app.state.admission.failed == 1
    with pytest.raises(openai.APIStatusError):
        ask(openai_client(serve(FailingLLM(fake_model, after=0))), max_output_tokens=9)


REFUSED = [
    ({"input": []}, "input"),
    ({"input": 3}, "input"),
    ({"input": [{"type": "item_reference", "id": 3}]}, "input[0].id"),
    ({"input": [{"type": "telepathy"}]}, "input[0].type"),
    ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": None}]}, "input[0].content"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{"}]}, "input[0].arguments"),
    ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
    ({"background": True, "store": False}, "background"),
    ({"truncation": "some"}, "truncation"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"text": {"format": {"type": "json_schema", "name": "x", "schema": 3}}}, "text.format.schema"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "namespace", "name": "n"}]}, "tools[0].tools"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "function"}]}]}, "tools[0].tools[0].name"),
    ({"tools": [*TOOLS, {"type": "custom", "name": "get_weather"}]}, "tools[1].name"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"tools": [{"type": "function", "name": ""}]}, "tools[0].name"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "nope"}}, "tool_choice"),
    ({"tools": TOOLS}, "tool_choice"),  # this server has no tool parser
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": -1}, "temperature"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"n": 2}, "n"),
    ({"max_tokens": 5}, "max_tokens"),
]


def test_bad_input_is_named(serve: Serve) -> None:
    with serve().client() as http:
        for fields, param in REFUSED:
            reply = http.post("/v1/responses", json={"model": MODEL, "input": "hi", **fields})
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param), (fields, reply.text)
        assert http.post("/v1/responses", json={"model": "other", "input": "hi"}).status_code == 404
        assert http.get("/v1/responses/resp_x").json()["error"]["param"] == "response_id"
        assert http.get("/v1/responses/resp_x?stream=maybe").json()["error"]["param"] == "stream"
        assert http.get("/v1/responses/resp_x?starting_after=3").json()["error"]["param"] == "starting_after"


def test_neutral_values_ask_for_nothing(serve: Serve) -> None:
    fields = {"background": False, "include": [], "truncation": "disabled", "tools": [], "tool_choice": "auto"}
    more = {"text": {"format": {"type": "text"}}, "reasoning": {"effort": "low"}, "parallel_tool_calls": True}
    extra = {"top_k": 5, "seed": 1, "user": "u", "service_tier": "auto", "stop": ["zzz"]}
    with serve().client() as http:
        body = {"model": MODEL, "input": "hi", "max_output_tokens": 3, **fields, **more, **extra}
        reply = http.post("/v1/responses", json=body)
    assert reply.status_code == 200, reply.text


def test_the_store_is_bounded() -> None:
    now = [0.0]
    store = ResponseStore(max_responses=2, max_bytes=100, max_age_s=10.0, clock=lambda: now[0]).of("")

    def keep(name: str, body: bytes = b"1") -> None:
        store.keep(name, StoredResponse(body, b"2"))

    keep("a")
    keep("b")
    assert store.get("a")
    keep("c")
    assert store.get("b") is None and store.get("a") and store.get("c")  # b was used least recently
    keep("big", b"x" * 98)
    assert len(store) == 1 and store.get("big")
    keep("too big", b"x" * 100)
    assert len(store) == 0
    keep("old")
    now[0] = 10.5
    assert store.get("old") is None and not store.drop("old") and len(store) == 0


def test_many_streams_at_once(serve: Serve) -> None:
    app = serve({"script": "All of us say this."})

    def one(texts: list[str]) -> None:
        with httpx.Client(trust_env=False, timeout=240.0) as http:
            body = {"model": MODEL, "input": "hi", "stream": True}
            lines = http.post(f"{app.url}/v1/responses", json=body).text.splitlines()
        events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
        texts.append("".join(e["delta"] for e in events if e["type"] == "response.output_text.delta"))

    texts: list[str] = []
    threads = [threading.Thread(target=one, args=(texts,)) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert texts == ["All of us say this."] * 20
    app.settle()
    assert app.state.admission.finished == 20

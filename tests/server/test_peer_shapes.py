"""Answers have the keys that vLLM's have, null where there is nothing to say, and requests are judged as there.

The sets below are facts about vLLM's protocol: which keys a whole answer and a chunk hold.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.server.fakes_chat import MODEL, PROMPT, WEATHER, openai_client, sse
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve

USER = [{"role": "user", "content": PROMPT}]
ANSWER = {
    *("id", "object", "created", "model", "choices", "service_tier", "system_fingerprint", "usage"),
    *("kv_transfer_params", "ec_transfer_params", "metrics"),
}
CHAT_ANSWER = ANSWER | {"prompt_logprobs", "prompt_token_ids", "prompt_text"}
USAGE = {
    *("prompt_tokens", "total_tokens", "completion_tokens", "prompt_tokens_details", "completion_tokens_details"),
}
CHAT_CHOICE = {"index", "message", "logprobs", "finish_reason", "stop_reason", "token_ids", "routed_experts"}
MESSAGE = {"role", "content", "refusal", "annotations", "audio", "function_call", "reasoning"}
CHOICE = {
    *("index", "text", "logprobs", "finish_reason", "stop_reason", "token_ids", "prompt_logprobs", "prompt_token_ids"),
    "routed_experts",
}
CHAT_CHUNK_CHOICE = {"index", "delta", "logprobs", "finish_reason", "token_ids"}
CHUNK_CHOICE = {"index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"}
CHUNK = {"id", "object", "created", "model", "choices"}


def post(app: RunningApp, path: str, **fields: Any) -> dict[str, Any]:
    with app.client() as client:
        reply = client.post(path, json={"model": MODEL, **fields})
    assert reply.status_code == 200, reply.text
    return dict(reply.json())


def chunks(app: RunningApp, path: str, **fields: Any) -> list[dict[str, Any]]:
    with app.client() as client:
        *told, done = sse(client.post(path, json={"model": MODEL, "stream": True, **fields}).text)
    assert done == "[DONE]"
    return [json.loads(one) for one in told]


def refused(app: RunningApp, path: str, **fields: Any) -> dict[str, Any]:
    with app.client() as client:
        reply = client.post(path, json={"model": MODEL, **fields})
    assert reply.status_code == 400, reply.text
    return dict(reply.json()["error"])


def test_a_chat_answer(serve: Serve) -> None:
    answer = post(serve({"script": "Hello"}), "/v1/chat/completions", messages=USER)
    (choice,) = answer["choices"]
    assert set(answer) == CHAT_ANSWER and set(answer["usage"]) == USAGE
    assert set(choice) == CHAT_CHOICE and set(choice["message"]) == MESSAGE  # no calls: no tool_calls
    assert {name for name in CHAT_ANSWER if answer[name] is None} == CHAT_ANSWER - {*CHUNK, "usage"}
    assert {name for name in MESSAGE if choice["message"][name] is None} == MESSAGE - {"role", "content"}
    assert answer["usage"]["prompt_tokens_details"] is None


def test_a_completion(serve: Serve) -> None:
    answer = post(serve({"script": "Hello"}), "/v1/completions", prompt=PROMPT)
    (choice,) = answer["choices"]
    assert set(answer) == ANSWER and set(answer["usage"]) == USAGE and set(choice) == CHOICE
    assert {name for name in CHOICE if choice[name] is None} == CHOICE - {"index", "text", "finish_reason"}


def test_chunks_of_a_chat(serve: Serve) -> None:
    app = serve({"script": "One two three."})
    first, *middle, last = chunks(app, "/v1/chat/completions", messages=USER)
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["prompt_token_ids"] is None and first["prompt_text"] is None
    assert set(first["choices"][0]) == CHAT_CHUNK_CHOICE - {"token_ids"}
    for chunk in middle:
        assert set(chunk) == CHUNK and set(chunk["choices"][0]) == CHAT_CHUNK_CHOICE
        assert set(chunk["choices"][0]["delta"]) == {"content"}
    (ending,) = last["choices"]
    assert set(ending) == CHAT_CHUNK_CHOICE | {"stop_reason"} and ending["finish_reason"] == "stop"
    short = chunks(app, "/v1/chat/completions", messages=USER, max_tokens=3)
    assert short[-1]["choices"][0]["finish_reason"] == "length" and short[-1]["choices"][0]["delta"]["content"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in short[:-1]] == [None] * (len(short) - 1)


def test_chunks_of_a_completion(serve: Serve) -> None:
    app = serve({"script": "One two three."})
    told = chunks(app, "/v1/completions", prompt=PROMPT, max_tokens=4)
    assert all(set(chunk) == CHUNK and set(chunk["choices"][0]) == CHUNK_CHOICE for chunk in told)
    assert told[-1]["choices"][0]["finish_reason"] == "length" and told[-1]["choices"][0]["text"]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
def test_usage_of_streams(serve: Serve, path: str) -> None:
    fields: dict[str, Any] = {"messages": USER} if "chat" in path else {"prompt": PROMPT}
    fields |= {"max_tokens": 5, "n": 2}
    app, forced = serve({"script": "One two three."}), serve({"script": "One."}, enable_force_include_usage=True)
    assert not any(chunk.get("usage") for chunk in chunks(app, path, **fields))
    for options in ({"include_usage": False}, {"include_usage": False, "continuous_usage_stats": True}, {}, None):
        assert not any(chunk.get("usage") for chunk in chunks(app, path, **fields, stream_options=options))
    for server, options in ((app, {"include_usage": True, "continuous_usage_stats": True}), (forced, None)):
        *told, last = chunks(server, path, **fields, stream_options=options)
        assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
        most: dict[int, int] = {}
        for chunk in told:
            usage, (choice,) = chunk["usage"], chunk["choices"]
            assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
            assert usage["completion_tokens"] > most.get(choice["index"], -1)  # of this choice alone
            most[choice["index"]] = usage["completion_tokens"]
        assert last["usage"]["completion_tokens"] == sum(most.values())
    assert refused(app, path, **fields, stream_options={"include_usage": True})["param"] == "stream_options"


def test_errors(serve: Serve) -> None:
    app = serve()
    error = refused(app, "/v1/chat/completions", messages=USER, max_tokens=-1)
    assert error["code"] == 400 and error["param"] == "max_tokens"
    long = refused(app, "/v1/chat/completions", messages=[{"role": "user", "content": "word " * 2000}])
    assert long["message"].startswith("This model's maximum context length is 1024 tokens. However, you requested ")
    assert long["reason"] == "context_length_exceeded" and long["param"] == "messages"
    with app.client() as client:
        assert client.post("/v1/completions", json={"model": "x", "prompt": "a"}).json()["error"]["code"] == 404
        assert client.get("/v1/nothing").json()["error"]["code"] == 404


def test_model_cards(serve: Serve) -> None:
    with serve().client() as client:
        (card,) = client.get("/v1/models").json()["data"]
    keys = {"id", "object", "created", "owned_by", "root", "parent", "max_model_len", "permission", "input_modalities"}
    assert set(card) == keys and card["max_model_len"] == 1024 and card["parent"] is None
    assert (card["input_modalities"], card["owned_by"]) == (["text"], "vllm")
    assert {"id", "object", "created", "allow_sampling", "allow_logprobs", "is_blocking"} <= set(card["permission"][0])


def test_what_tool_loops_send_back(serve: Serve) -> None:
    """As client libraries write an answer with calls, or of thoughts alone, into the next request."""
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    app = serve({"script": "Sunny."}, tool_call_parser="hermes", enable_auto_tool_choice=True)
    parts = [{"type": "text", "text": "12"}, {"type": "text", "text": "degrees"}]
    assistants: list[dict[str, Any]] = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None, "audio": None, "annotations": []},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "", "tool_calls": [call], "function_call": None, "reasoning": None},
        {"role": "assistant", "content": None, "reasoning": "It may rain.", "tool_calls": []},
        {"role": "assistant", "content": None, "reasoning_content": "It may rain.", "tool_calls": None},
        {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]},
        {"role": "assistant", "content": None, "refusal": "I cannot."},
        {"role": "assistant", "content": []},
    ]
    for assistant in assistants:
        for content in ("12", parts, None):
            messages = [*USER, assistant, {"role": "tool", "tool_call_id": "call_1", "content": content}, *USER]
            answer = post(app, "/v1/chat/completions", messages=messages, tools=[WEATHER], max_tokens=200)
            assert answer["choices"][0]["message"]["content"] == "Sunny.", assistant


def test_order_of_top_logprobs(serve: Serve) -> None:
    """The token that was chosen, then the likeliest; of `logprobs: true` alone there are none."""
    client = openai_client(serve({"script": "One two three."}))
    create: Any = client.chat.completions.create
    content = create(model=MODEL, messages=USER, logprobs=True, top_logprobs=3).choices[0].logprobs.content
    for entry in content:
        assert entry.top_logprobs[0].token == entry.token and len(entry.top_logprobs) <= 3
    bare = create(model=MODEL, messages=USER, logprobs=True).choices[0].logprobs.content
    assert all(entry.top_logprobs == [] for entry in bare)


def test_echo_of_ids_keeps_special_tokens(serve: Serve) -> None:
    app = serve({"script": "One."})
    tokenizer = app.llm.tokenizer
    special = min(tokenizer.skipped_ids)
    ids = [special, *tokenizer.encode("hello there", add_special_tokens=False)]
    answer = post(app, "/v1/completions", prompt=ids, echo=True, max_tokens=3, logprobs=1)
    (choice,) = answer["choices"]
    begun = tokenizer.decode(ids, skip_special_tokens=False)
    assert choice["text"].startswith(begun) and tokenizer.decode([special], skip_special_tokens=False) in begun
    offsets = choice["logprobs"]["text_offset"]
    for offset, token in zip(offsets, choice["logprobs"]["tokens"], strict=True):
        if token != "</s>":
            assert choice["text"][offset:].startswith(token)


def test_prompts_are_told_where_asked_for(serve: Serve) -> None:
    app = serve({"script": "Hi."})
    answer = post(app, "/v1/chat/completions", messages=USER, return_prompt_text=True, return_token_ids=True)
    assert PROMPT in answer["prompt_text"] and len(answer["prompt_token_ids"]) == answer["usage"]["prompt_tokens"]
    first = chunks(app, "/v1/chat/completions", messages=USER, return_prompt_text=True)[0]
    assert first["prompt_text"] == answer["prompt_text"]

"""/v1/chat/completions as the official client sees it. The fake model says its script, or repeats its prompt."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.server.fakes_chat import MODEL, PROMPT, FailingLLM, openai_client, sse
from tests.server.helpers import RunningApp
from tests.server.test_completions import Serve

SCRIPT = "The quick brown fox jumps over the lazy dog."
USER = [{"role": "user", "content": PROMPT}]


@pytest.fixture
def app(serve: Serve) -> RunningApp:
    return serve({"script": SCRIPT}, trust_request_chat_template=True, enable_prompt_tokens_details=True)


@pytest.fixture
def client(app: RunningApp) -> openai.OpenAI:
    return openai_client(app)


def chat(client: openai.OpenAI, extra: dict[str, Any] | None = None, **fields: Any) -> Any:
    return client.chat.completions.create(**{"model": MODEL, "messages": USER, **fields}, extra_body=extra)


def joined(stream: Any) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    return texts


def test_an_answer(client: openai.OpenAI) -> None:
    answer = chat(client)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.model == MODEL
    assert (choice.message.role, choice.message.content, choice.message.tool_calls) == ("assistant", SCRIPT, None)
    assert (choice.finish_reason, choice.stop_reason, choice.logprobs) == ("stop", None, None)
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.prompt_tokens_details.cached_tokens == 0


def test_without_a_limit_the_model_says_all_it_has_to_say(client: openai.OpenAI) -> None:
    assert chat(client).choices[0].finish_reason == "stop"
    assert chat(client, max_tokens=3).usage.completion_tokens == 3
    assert chat(client, max_completion_tokens=2, max_tokens=3).usage.completion_tokens == 2


def test_a_stream_begins_with_the_role_and_ends_with_a_reason(client: openai.OpenAI) -> None:
    chunks = list(chat(client, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[0].choices[0].delta.content == ""
    assert all(chunk.choices[0].delta.role is None for chunk in chunks[1:])
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1
    assert joined(chunks) == {0: SCRIPT}


def test_done_ends_a_stream(app: RunningApp) -> None:
    with app.client() as client:
        answer = client.post("/v1/chat/completions", json={"model": MODEL, "messages": USER, "stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    assert answer.headers["cache-control"] == "no-cache"
    assert sse(answer.text)[-1] == "[DONE]"


@pytest.mark.parametrize("fields", [{"n": 3}, {"stop": ["jumps", "never"]}, {"seed": 5}, {"max_tokens": 4}])
def test_a_stream_says_what_the_whole_says(client: openai.OpenAI, fields: dict[str, Any]) -> None:
    whole = chat(client, **fields)
    expected = {choice.index: choice.message.content for choice in whole.choices}
    assert joined(chat(client, stream=True, **fields)) == expected and len(expected) == fields.get("n", 1)


def test_usage_of_a_stream(client: openai.OpenAI) -> None:
    whole = chat(client).usage
    *chunks, last = chat(client, stream=True, stream_options={"include_usage": True})
    assert all(chunk.usage is None for chunk in chunks) and last.choices == []
    assert last.usage == whole
    each: Any = {"include_usage": True, "continuous_usage_stats": True}
    counts = [chunk.usage.completion_tokens for chunk in chat(client, stream=True, stream_options=each)]
    assert counts[0] == 0 and counts[-1] == whole.completion_tokens and counts == sorted(counts)


def test_the_server_may_always_tell_the_usage(serve: Serve) -> None:
    client = openai_client(serve({"script": SCRIPT}, enable_force_include_usage=True))
    assert list(chat(client, stream=True))[-1].usage.completion_tokens > 0


def test_logprobs(client: openai.OpenAI) -> None:
    choice = chat(client, logprobs=True, top_logprobs=2).choices[0]
    content = choice.logprobs.content
    *said, end = content
    assert "".join(entry.token for entry in said) == SCRIPT and end.token == "</s>"
    assert b"".join(bytes(entry.bytes) for entry in said).decode() == SCRIPT
    assert all(entry.logprob == -0.5 and len(entry.top_logprobs) == 2 for entry in content)
    assert content[0].top_logprobs[0].token == content[0].token
    assert chat(client, logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_streamed_logprobs_are_those_of_the_whole(client: openai.OpenAI) -> None:
    whole = chat(client, logprobs=True, top_logprobs=1).choices[0].logprobs.content
    chunks = chat(client, logprobs=True, top_logprobs=1, stream=True)
    parts = [chunk.choices[0].logprobs.content for chunk in chunks if chunk.choices[0].logprobs]
    assert [entry for part in parts for entry in part] == whole


def test_bytes_of_half_characters(serve: Serve) -> None:
    script = "안녕하세요 🦊"
    content = chat(openai_client(serve({"script": script})), logprobs=True).choices[0].logprobs.content
    assert any(entry.token == "\ufffd" for entry in content)
    assert b"".join(bytes(entry.bytes) for entry in content[:-1]).decode() == script


def test_token_ids_and_prompt_logprobs(client: openai.OpenAI, app: RunningApp) -> None:
    extra = {"return_token_ids": True, "prompt_logprobs": 1, "return_tokens_as_token_ids": True}
    answer = chat(client, extra, logprobs=True)
    assert app.llm.tokenizer.decode(answer.choices[0].token_ids) == SCRIPT
    assert answer.prompt_logprobs[0] is None and len(answer.prompt_logprobs) == len(answer.prompt_token_ids)
    assert answer.choices[0].logprobs.content[0].token == f"token_id:{answer.choices[0].token_ids[0]}"
    chunks = list(chat(client, extra, stream=True))
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids and len(chunks[0].prompt_logprobs) > 1
    ids = [token for chunk in chunks[1:] for token in chunk.choices[0].token_ids]
    assert ids == answer.choices[0].token_ids


def test_a_message_can_be_continued(client: openai.OpenAI, app: RunningApp) -> None:
    messages = [*USER, {"role": "assistant", "content": "Well, "}]
    extra = {"continue_final_message": True, "echo": True, "return_token_ids": True}
    answer = chat(client, extra, messages=messages)
    assert answer.choices[0].message.content == "Well, " + SCRIPT
    assert app.llm.tokenizer.decode(answer.prompt_token_ids).endswith("assistant: Well, ")
    assert joined(chat(client, extra, messages=messages, stream=True)) == {0: "Well, " + SCRIPT}
    assert chat(client, {"continue_final_message": True}, messages=messages).choices[0].message.content == SCRIPT


def test_the_template_is_the_requests_to_shape(client: openai.OpenAI, app: RunningApp) -> None:
    def prompt(**extra: Any) -> str:
        ids = chat(client, {**extra, "return_token_ids": True}, max_tokens=1).prompt_token_ids
        return app.llm.tokenizer.decode(ids, skip_special_tokens=False)

    assert prompt(add_generation_prompt=False).endswith(PROMPT + "\n")
    template = "{{ messages[0].content }}|{{ mood }}|{{ documents }}|{{ reasoning_effort }}|{{ enable_thinking }}"
    fields = {"chat_template_kwargs": {"mood": "good"}, "documents": [{"a": "b"}], "reasoning_effort": "none"}
    assert prompt(chat_template=template, **fields) == PROMPT + "|good|[{'a': 'b'}]|none|False"


def test_templates_of_requests_are_refused_by_default(serve: Serve) -> None:
    with pytest.raises(openai.BadRequestError, match="trust-request-chat-template") as bad:
        chat(openai_client(serve()), {"chat_template": "x"})
    assert bad.value.param == "chat_template"


def test_fields_that_change_nothing_here(client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {
        "user": "me", "store": True, "metadata": {"a": "b"}, "service_tier": "default", "seed": 1, "temperature": 0.5,
        "response_format": {"type": "text"}, "modalities": ["text"], "verbosity": "medium", "prompt_cache_key": "k",
        "safety_identifier": "s", "parallel_tool_calls": True, "reasoning_effort": "low", "logit_bias": {"7": -1},
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "top_p": 0.5,
    }  # fmt: skip
    extra = {"top_k": 3, "min_p": 0.1, "guided_json": None, "mm_processor_kwargs": {}, "add_special_tokens": False,
             "use_beam_search": False, "include_reasoning": True, "session_id": "x", "vllm_xargs": None}  # fmt: skip
    assert chat(client, extra, **fields).choices[0].message.content == SCRIPT


def test_prompts_are_cut_where_a_request_asks_for_it(serve: Serve) -> None:
    client = openai_client(serve())  # repeats its prompt
    whole = chat(client, max_tokens=2)
    cut = chat(client, {"truncate_prompt_tokens": 4, "return_token_ids": True}, max_tokens=4)
    right = chat(
        client, {"truncate_prompt_tokens": 4, "truncation_side": "right", "return_token_ids": True}, max_tokens=2
    )
    kept = chat(client, {"return_token_ids": True}, max_tokens=2).prompt_token_ids
    assert cut.usage.prompt_tokens == right.usage.prompt_tokens == 4 < whole.usage.prompt_tokens
    assert (cut.prompt_token_ids, right.prompt_token_ids) == (kept[-4:], kept[:4])
    long: Any = [{"role": "user", "content": PROMPT * 200}]
    fits = chat(client, {"truncate_prompt_tokens": -1}, messages=long, max_tokens=6)
    assert fits.usage.prompt_tokens == 1024 - 6
    more = chat(client, {"add_special_tokens": True}, max_tokens=2)
    assert more.usage.prompt_tokens >= whole.usage.prompt_tokens


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "at least 1"),
    ({"messages": USER * 5000}, "messages", "4096"),
    ({"messages": ["hello"]}, "messages[0]", "dictionary"),
    ({"messages": [{"content": "a"}]}, "messages[0].role", "string"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "missing"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "list of parts"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0].type", "text"),
    ({"messages": [{"role": "user", "content": "word " * 4000}]}, "messages", "maximum context length is 1024 tokens"),
    ({"max_tokens": 1024}, "max_tokens", "is 1024 tokens. However, you requested 10"),
    ({"max_completion_tokens": 2000}, "max_completion_tokens", "2000 in the completion"),
    ({"stream_options": {"include_usage": True}, "stream": False}, "stream_options", "stream is true"),
    ({"logprob_token_ids": [5]}, "logprob_token_ids", "logprobs to be true"),
    ({"logprobs": True, "logprob_token_ids": [2**40]}, "logprob_token_ids", "vocabulary"),
    ({"logprobs": True, "logprob_token_ids": [5] * 129}, "logprob_token_ids", "128"),
    ({"repetition_detection": {"max_pattern_size": 4}}, "repetition_detection.min_count", "at least 2"),
    ({"repetition_detection": {"max_pattern_size": 9999}}, "repetition_detection.max_pattern_size", "at most 4096"),
    ({"speculative": {"num_tokens": -1}}, "speculative.num_tokens", "greater than or equal to 0"),
    ({"speculative": 4}, "speculative", "dictionary"),
    ({"thinking_token_budget": -2}, "thinking_token_budget", "greater than or equal to -1"),
    ({"use_beam_search": True, "stop": "a"}, "stop", "use_beam_search"),
    ({"top_logprobs": 2}, "top_logprobs", "logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "20"),
    ({"logprobs": 3}, "logprobs", "boolean"),
    ({"response_format": {"type": "json_object"}, "guided_regex": "a"}, "response_format", "give one"),
    ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.schema", "schema"),
    ({"response_format": {"type": "xml"}}, "response_format", "must be one of text"),
    ({"max_completion_tokens": 0}, "max_completion_tokens", "greater than or equal to 1"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"functions": [{"name": "f"}]}, "functions", "tools"),
    ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens", "at least 1"),
    ({"truncation_side": "middle"}, "truncation_side", "pattern"),
    ({"modalities": ["audio"]}, "modalities", "text only"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message", "contradict"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs.messages", "field of its own"),
    ({"chat_template": "{{ raise_exception('no') }}"}, "messages", "refused"),
    ({"tools": [{"type": "function"}]}, "tools[0].function", "object"),
    ({"tools": [{"type": "web"}]}, "tools[0].type", "function"),
    ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name", "characters"),
    ({"tools": [{"function": {"name": "f", "parameters": 3}}]}, "tools[0].function.parameters", "schema"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tool_choice", "--tool-call-parser"),
    ({"tool_choice": "required"}, "tool_choice", "no tools"),
    ({"tool_choice": "always"}, "tool_choice", "none, auto, required"),
    ({"tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice", "not in tools"),
    ({"tool_choice": {"type": "allowed_tools"}}, "tool_choice", "look like"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_bad_fields(app: RunningApp, stream: bool) -> None:
    with app.client() as client:
        for fields, param, words in BAD:
            body = {"model": MODEL, "messages": USER, "stream": stream, **fields}
            answer = client.post("/v1/chat/completions", json=body)
            assert answer.status_code == 400, (fields, answer.text)
            error = answer.json()["error"]
            assert error["param"] == param, (fields, error)
            assert words in error["message"], (fields, error)
    assert app.llm.started == [] and app.state.admission.in_flight == 0


def test_a_stream_that_breaks_has_no_done(fake_model: Any, serve: Serve) -> None:
    app = serve(FailingLLM(fake_model, after=2))
    with app.client() as client:
        body = {"model": MODEL, "messages": USER, "stream": True, "max_tokens": 9}
        events = sse(client.post("/v1/chat/completions", json=body).text)
        assert '"error"' in events[-1] and "the step failed" in events[-1]
        body["stream"] = False
    app.settle()
    assert app.state.admission.failed == 1


def test_leaving_ends_the_request(serve: Serve) -> None:
    app = serve({"delay": 0.01})
    stream = chat(openai_client(app), stream=True, max_tokens=900)
    for _ in range(3):
        next(iter(stream))
    stream.response.close()
    app.settle()
    assert len(app.llm.aborted) == 1 and app.state.admission.aborted == 1

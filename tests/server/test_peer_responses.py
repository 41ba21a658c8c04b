"""/v1/responses: what vLLM's public tests expect of it, as facts about ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import openai
import pytest

from cadence.core.errors import InvalidRequestError
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.responses.response_messages import open_kind, to_messages
from tests.server.fakes_chat import MODEL, openai_client
from tests.server.helpers import RunningApp

Serve = Callable[..., RunningApp]
THINKING = {"reasoning_parser": "qwen3"}
CALL = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}', "status": "completed"}


def ask(client: openai.OpenAI, **fields: Any) -> Any:
    return client.responses.create(**{"model": MODEL, "input": "Hello there", "max_output_tokens": 50, **fields})


def said(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}], **fields}


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "type": "reasoning",
        "id": "r",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}],
        **fields,
    }


def messages(*items: dict[str, Any]) -> list[dict[str, Any]]:
    return to_messages(items, 0, None, Ignored())


def read(client: openai.OpenAI, **fields: Any) -> str:
    """The prompt that the model was given."""
    answer = ask(client, **fields, extra_body={"enable_response_messages": True})
    return str(answer.input_messages[0]["message"])


def test_what_the_model_read_and_wrote(serve: Serve) -> None:
    client = openai_client(serve({"script": "<think>Hm.</think>Good day."}, **THINKING))
    answer = ask(client, extra_body={"enable_response_messages": True})
    (told,), (written,) = answer.input_messages, answer.output_messages
    assert told["type"] == written["type"] == "raw_message_tokens"
    assert "user: Hello there" in told["message"] and told["message"].endswith("assistant: ")
    assert written["message"].startswith("<think>Hm.</think>Good day.")
    assert len(told["tokens"]) == answer.usage.input_tokens
    assert len(written["tokens"]) == answer.usage.output_tokens
    plain = ask(client)
    assert plain.input_messages is None and plain.output_messages is None


def test_what_the_model_read_and_wrote_in_streams(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day."}))
    events = list(ask(client, stream=True, extra_body={"enable_response_messages": True}))
    whole = [event.response for event in events if hasattr(event, "response")]
    assert [response.output_messages for response in whole[:-1]] == [None] * (len(whole) - 1)
    assert whole[-1].output_messages[0]["message"].startswith("Good day.")
    assert "Hello there" in whole[-1].input_messages[0]["message"]


@pytest.mark.parametrize("stream", [False, True])
def test_thoughts_that_are_not_asked_for(serve: Serve, stream: bool) -> None:
    client = openai_client(serve({"script": "<think>Hm.</think>Good day."}, **THINKING))
    answer = ask(client, stream=stream, extra_body={"include_reasoning": False})
    answer = list(answer)[-1].response if stream else answer
    assert [item.type for item in answer.output] == ["message"] and answer.output_text == "Good day."
    assert answer.usage.output_tokens_details.reasoning_tokens > 0
    assert [item.type for item in ask(client).output] == ["reasoning", "message"]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_of_a_message_after_thoughts(serve: Serve, stream: bool) -> None:
    client = openai_client(serve({"script": "<think>Hm.</think>Good day."}, **THINKING))
    answer = ask(client, stream=stream, include=["message.output_text.logprobs"], top_logprobs=2)
    answer = list(answer)[-1].response if stream else answer
    logprobs = answer.output[-1].content[0].logprobs
    assert "".join(logprob.token for logprob in logprobs).replace("</think>", "").startswith("Good day.")
    assert all(len(logprob.top_logprobs) == 2 for logprob in logprobs)


def test_usage_has_every_key(serve: Serve) -> None:
    usage = ask(openai_client(serve({"script": "Good day."}))).usage.model_dump()
    assert usage["input_tokens_details"].keys() >= {"cached_tokens", "input_tokens_per_turn", "cached_tokens_per_turn"}
    expected = {"reasoning_tokens", "tool_output_tokens", "output_tokens_per_turn", "tool_output_tokens_per_turn"}
    assert usage["output_tokens_details"].keys() == expected


def test_a_message_that_was_not_ended_goes_on(serve: Serve) -> None:
    client = openai_client(serve({"script": "42."}))
    question = {"role": "user", "content": "What is it?"}
    for status in ("in_progress", "incomplete"):
        assert read(client, input=[question, said("It is (", status=status)]).endswith("assistant: It is (")
    ended = read(client, input=[question, said("It is (", status="completed")])
    assert ended.endswith("assistant: It is (\n<|turn|>assistant: ")


@pytest.mark.parametrize("stream", [False, True])
def test_a_thought_that_was_not_ended_goes_on(serve: Serve, stream: bool) -> None:
    client = openai_client(serve({"script": " and on</think>Done."}, **THINKING))
    items = [{"role": "user", "content": "Think."}, thought("On", status="incomplete")]
    answer = ask(client, input=items, stream=stream, extra_body={"enable_response_messages": True})
    answer = list(answer)[-1].response if stream else answer
    assert answer.input_messages[0]["message"].endswith("assistant: <think>\nOn")
    assert answer.output[0].content[0].text.strip() == "and on" and answer.output_text == "Done."


def test_a_thought_without_a_word_is_a_beginning(serve: Serve) -> None:
    client = openai_client(serve({"script": "Done."}, **THINKING))
    for before in ({"role": "user", "content": "Think."}, said("Hello.")):
        assert read(client, input=[before, thought("", status="incomplete")]).endswith("<|turn|>assistant: ")


@pytest.mark.parametrize(
    ("items", "kind"),
    [
        ([said("a", status="in_progress")], "message"),
        ([said("a", status="incomplete")], "message"),
        ([said("a", status="completed")], ""),
        ([said("a", status=None)], ""),
        ([said("a")], ""),
        ([thought("a", status="in_progress")], "reasoning"),
        ([thought("a", status="completed")], ""),
        ([thought("a", status=None)], ""),
        ([said("a"), said("b", status="in_progress")], "message"),
        ([said("a", status="in_progress"), said("b")], ""),
        ([{**CALL, "status": "in_progress"}], ""),
        ([{"role": "user", "content": "a", "status": "in_progress"}], ""),
        ([], ""),
    ],
)
def test_what_goes_on(items: list[dict[str, Any]], kind: str) -> None:
    assert open_kind(items) == kind


def test_what_the_assistant_says_is_one_message() -> None:
    (message,) = messages(thought("Hm."), said("Hello"), CALL, {**CALL, "call_id": "d"})
    assert (message["content"], message["reasoning_content"]) == ("Hello", "Hm.")
    assert [call["id"] for call in message["tool_calls"]] == ["c", "d"]
    output = {"type": "function_call_output", "call_id": "c", "output": "42"}
    assert [message["role"] for message in messages(CALL, output, CALL)] == ["assistant", "tool", "assistant"]
    assert len(messages(said("Hello"), said("World"))) == 2


def test_thoughts_that_nothing_follows_are_told() -> None:
    alone = {"role": "assistant", "content": "", "reasoning_content": "Hm."}
    assert messages(thought("Hm.")) == [alone]
    user = {"role": "user", "content": "Go on."}
    assert messages(thought("Hm."), user) == [alone, user]
    assert messages(thought("")) == []


def test_an_input_without_items(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day."}))
    first = ask(client, input=[], instructions="Greet.")
    assert first.output_text == "Good day."
    assert ask(client, input=[], previous_response_id=first.id).status == "completed"
    with pytest.raises(openai.BadRequestError, match="input is empty"):
        ask(client, input=[])


def test_errors_in_the_words_that_clients_know(serve: Serve) -> None:
    client = openai_client(serve({"script": "Good day."}))
    with pytest.raises(openai.BadRequestError, match="background can only be used when `store` is true"):
        ask(client, background=True, store=False)
    answer = ask(client)
    with pytest.raises(openai.BadRequestError, match=r"Cannot cancel a synchronous response\."):
        client.responses.cancel(answer.id)
    with pytest.raises(openai.NotFoundError, match=r"Response with id .* not found\."):
        client.responses.retrieve(ask(client, store=False).id)
    with pytest.raises(openai.BadRequestError, match="previous_input_messages is not supported"):
        ask(client, extra_body={"previous_input_messages": [{"role": "user", "content": "Hi"}]})


def test_every_name_of_a_model_where_any_will_do(serve: Serve) -> None:
    assert ask(openai_client(serve({"script": "Hi."}, skip_model_name_validation=True)), model="any").model == "any"
    with pytest.raises(openai.NotFoundError):
        ask(openai_client(serve({"script": "Hi."})), model="any")


@pytest.mark.parametrize("seed", [-(2**63) - 1, 2**63])
def test_seeds_have_sixty_four_bits(serve: Serve, seed: int) -> None:
    client = openai_client(serve({"script": "Hi."}))
    with pytest.raises(openai.BadRequestError, match="seed"):
        ask(client, extra_body={"seed": seed})
    assert ask(client, extra_body={"seed": max(-(2**63), min(seed, 2**63 - 1))}).status == "completed"


def test_a_call_without_its_id_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="call_id"):
        messages({"type": "function_call", "name": "f", "arguments": "{}"})

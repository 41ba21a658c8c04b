"""Tool calls and reasoning, told apart from the text of an answer, whole and streamed."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.server.fakes_chat import WEATHER, openai_client
from tests.server.helpers import RunningApp
from tests.server.test_chat import chat
from tests.server.test_completions import Serve

CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TWO_CALLS = CALL + "\n" + CALL.replace("Paris", "Oslo")
NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
HERMES = {"tool_call_parser": "hermes", "enable_auto_tool_choice": True}


def say(serve: Serve, script: str, **options: Any) -> openai.OpenAI:
    return openai_client(serve({"script": script}, **options))


def gathered(stream: Any) -> tuple[str, str, list[dict[str, str]], str]:
    """Text, reasoning, calls and the finish reason of a stream's first choice, put together as clients do."""
    text, reasoning, calls, reason = "", "", [], ""
    for chunk in stream:
        choice = chunk.choices[0]
        text += choice.delta.content or ""
        reasoning += getattr(choice.delta, "reasoning", None) or ""
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or ():
            if call.id:
                assert call.index == len(calls) and call.type == "function"
                calls.append({"name": call.function.name, "arguments": ""})
            calls[call.index]["arguments"] += call.function.arguments
    return text, reasoning, calls, reason


def whole(answer: Any) -> tuple[str, str, list[dict[str, str]], str]:
    choice = answer.choices[0]
    calls = [{"name": c.function.name, "arguments": c.function.arguments} for c in choice.message.tool_calls or ()]
    return choice.message.content or "", choice.message.reasoning or "", calls, choice.finish_reason


def both(client: openai.OpenAI, **fields: Any) -> tuple[str, str, list[dict[str, str]], str]:
    """The answer, which is the same streamed and whole."""
    answer = whole(chat(client, **fields))
    assert gathered(chat(client, stream=True, **fields)) == answer
    return answer


def test_a_call(serve: Serve) -> None:
    client = say(serve, "Let me see. " + CALL, **HERMES)
    text, _, calls, reason = both(client, tools=[WEATHER])
    assert text.strip() == "Let me see." and reason == "tool_calls"
    assert [call["name"] for call in calls] == ["get_weather"]
    assert json.loads(calls[0]["arguments"]) == {"city": "Paris"}
    message = chat(client, tools=[WEATHER], tool_choice="auto").choices[0].message
    assert message.tool_calls[0].id.startswith("call_") and message.tool_calls[0].type == "function"


def test_arguments_come_in_pieces(serve: Serve) -> None:
    client = say(serve, CALL, **HERMES)
    chunks = [chunk.choices[0].delta for chunk in chat(client, stream=True, tools=[WEATHER])]
    pieces = [call.function.arguments for delta in chunks for call in delta.tool_calls or ()]
    assert len(pieces) > 3 and json.loads("".join(pieces)) == {"city": "Paris"}
    assert chat(client, tools=[WEATHER]).choices[0].message.content is None


def test_several_calls_or_only_one(serve: Serve) -> None:
    client = say(serve, TWO_CALLS, **HERMES)
    calls = both(client, tools=[WEATHER])[2]
    assert [json.loads(call["arguments"])["city"] for call in calls] == ["Paris", "Oslo"]
    assert len(both(client, tools=[WEATHER], parallel_tool_calls=False)[2]) == 1


def test_text_stays_text(serve: Serve) -> None:
    client = say(serve, "No tool is needed <here>.", **HERMES)
    assert both(client, tools=[WEATHER]) == ("No tool is needed <here>.", "", [], "stop")


def test_none_leaves_calls_unread(serve: Serve) -> None:
    client = say(serve, CALL, **HERMES)
    assert both(client, tools=[WEATHER], tool_choice="none") == (CALL, "", [], "stop")


def prompt_of(client: openai.OpenAI, app: RunningApp, **fields: Any) -> str:
    answer = chat(client, {"return_token_ids": True}, **fields)
    return app.llm.tokenizer.decode(answer.prompt_token_ids)


@pytest.mark.parametrize("hide", [False, True])
def test_the_template_sees_the_tools(serve: Serve, hide: bool) -> None:
    app = serve({"script": "Yes."}, **HERMES, exclude_tools_when_tool_choice_none=hide)
    client = openai_client(app)
    assert "get_weather" in prompt_of(client, app, tools=[WEATHER])
    assert ("get_weather" in prompt_of(client, app, tools=[WEATHER], tool_choice="none")) is not hide


@pytest.mark.parametrize("options", [HERMES, {}], ids=["hermes", "no parser"])
@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_a_demanded_call(serve: Serve, options: dict[str, Any], choice: Any) -> None:
    script = CALL if options else '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    text, _, calls, reason = both(say(serve, script, **options), tools=[WEATHER], tool_choice=choice)
    assert (text, reason) == ("", "tool_calls" if choice == "required" else "stop")
    assert calls[0]["name"] == "get_weather" and json.loads(calls[0]["arguments"]) == {"city": "Paris"}


def test_a_function_chosen_by_name_needs_only_its_arguments(serve: Serve) -> None:
    calls = both(say(serve, '{"city": "Paris"}'), tools=[WEATHER], tool_choice=NAMED)[2]
    assert calls == [{"name": "get_weather", "arguments": '{"city":"Paris"}'}]


@pytest.mark.parametrize("script", ["I would rather not.", '["a"]', CALL.replace("get_weather", "get_time")])
def test_a_demanded_call_that_does_not_come(serve: Serve, script: str) -> None:
    client = say(serve, script, **HERMES)
    with pytest.raises(openai.BadRequestError, match="could not be produced") as bad:
        chat(client, tools=[WEATHER], tool_choice=NAMED)
    assert bad.value.param == "tool_choice" and bad.value.body["reason"] == "tool_calls_not_produced"
    with pytest.raises(openai.APIError, match="could not be produced"):
        list(chat(client, tools=[WEATHER], tool_choice=NAMED, stream=True))


def test_a_demanded_call_cut_short_shows_what_there_is(serve: Serve) -> None:
    text, _, calls, reason = both(say(serve, "I would rather not."), tools=[WEATHER], tool_choice=NAMED, max_tokens=3)
    assert text and not calls and reason == "length"


@pytest.mark.parametrize("choice", ["required", NAMED], ids=["required", "named"])
def test_beside_demanded_calls_stands_no_text(serve: Serve, choice: Any) -> None:
    fields: dict[str, Any] = {"tools": [WEATHER], "tool_choice": choice}
    answer = chat(say(serve, CALL, **HERMES), **fields)
    assert answer.choices[0].message.content == "" and len(answer.choices[0].message.tool_calls) == 1
    cut_off = chat(say(serve, TWO_CALLS, **HERMES), **fields, max_tokens=answer.usage.completion_tokens + 4).choices[0]
    assert cut_off.message.content == "" and cut_off.finish_reason == "length"
    assert [json.loads(call.function.arguments) for call in cut_off.message.tool_calls] == [{"city": "Paris"}]


def test_calls_and_results_in_the_conversation(serve: Serve) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    messages: Any = [
        {"role": "user", "content": "Weather?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]
    assert both(say(serve, "It is sunny.", **HERMES), messages=messages, tools=[WEATHER])[0] == "It is sunny."


THOUGHT = "<think>\nThe user asks.\n</think>\n\nThe answer."


def test_reasoning(serve: Serve) -> None:
    client = say(serve, THOUGHT, reasoning_parser="qwen3")
    assert both(client) == ("The answer.", "The user asks.", [], "stop")
    answer = chat(client)
    assert answer.choices[0].message.reasoning_content == "The user asks."
    assert 0 < answer.usage.completion_tokens_details.reasoning_tokens < answer.usage.completion_tokens
    usage = list(chat(client, stream=True, stream_options={"include_usage": True}))[-1].usage
    assert usage == answer.usage


def test_reasoning_can_be_left_out(serve: Serve) -> None:
    client = say(serve, THOUGHT, reasoning_parser="qwen3")
    message = chat(client, {"include_reasoning": False}).choices[0].message
    assert message.content == "The answer." and message.reasoning is None
    assert gathered(chat(client, {"include_reasoning": False}, stream=True))[:2] == ("The answer.", "")


def test_reasoning_opened_by_the_prompt(serve: Serve) -> None:
    app = serve({"script": "Hm.\n</think>\nYes."}, reasoning_parser="qwen3", chat_template="{{ 'x<think>\n' }}")
    assert both(openai_client(app)) == ("Yes.", "Hm.", [], "stop")


def test_reasoning_then_a_call(serve: Serve) -> None:
    client = say(serve, "<think>Which city?</think>" + CALL, reasoning_parser="qwen3", **HERMES)
    text, reasoning, calls, reason = both(client, tools=[WEATHER])
    assert (text, reasoning, reason) == ("", "Which city?", "tool_calls") and len(calls) == 1


def test_no_token_loses_its_logprob(serve: Serve) -> None:
    client = say(serve, "<think>Which city?</think>Let me see." + CALL, reasoning_parser="qwen3", **HERMES)
    expected = chat(client, tools=[WEATHER], logprobs=True)
    content = expected.choices[0].logprobs.content
    assert len(content) == expected.usage.completion_tokens
    chunks = chat(client, tools=[WEATHER], logprobs=True, stream=True)
    streamed = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert streamed == content

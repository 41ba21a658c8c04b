"""Anthropic's Python client: messages, streams, a tool loop, thinking, token counts, errors."""

from __future__ import annotations

from typing import Any

import anthropic
from exchange import (
    CAPITAL,
    REAL,
    REAL_URL,
    SCRIPTED,
    SCRIPTED_URL,
    SUNNY,
    THINK,
    TOO_LONG,
    WEATHER,
    WEATHER_ANSWER,
    check,
    expect,
    finish,
    get_weather,
)

real = anthropic.Anthropic(base_url=REAL_URL, api_key="none", max_retries=0, timeout=60)
scripted = anthropic.Anthropic(base_url=SCRIPTED_URL, api_key="none", max_retries=0, timeout=60)
SCHEMA: Any = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"name": "get_weather", "description": "The weather in a city", "input_schema": SCHEMA}]


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


@check
def messages() -> None:
    answer = real.messages.create(
        model=REAL, max_tokens=30, messages=ask(CAPITAL), extra_body={"temperature": 0}, system="Be brief."
    )
    expect("Paris" in answer.content[0].text and answer.usage.output_tokens > 0, answer)  # type: ignore[union-attr]


@check
def stream() -> None:
    with real.messages.stream(
        model=REAL, max_tokens=30, messages=ask(CAPITAL), extra_body={"temperature": 0}
    ) as events:
        text = "".join(events.text_stream)
        final = events.get_final_message()
    expect("Paris" in text and final.content[0].text == text, final)  # type: ignore[union-attr]
    expect(final.stop_reason in ("end_turn", "max_tokens"), final)


def loop(question: str, **fields: Any) -> str:
    said = ask(question)
    for _ in range(4):
        with scripted.messages.stream(model=SCRIPTED, max_tokens=500, messages=said, tools=TOOLS, **fields) as events:
            answer = events.get_final_message()
        said.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if answer.stop_reason != "tool_use":
            return answer.content[-1].text  # type: ignore[union-attr]
        results = [(call.id, get_weather(**call.input)) for call in calls]  # type: ignore[arg-type]
        blocks = [{"type": "tool_result", "tool_use_id": name, "content": text} for name, text in results]
        said.append({"role": "user", "content": blocks})
    raise AssertionError("the loop does not end")


@check
def tool_loop() -> None:
    expect(loop(WEATHER) == WEATHER_ANSWER, loop(WEATHER))
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
    expect(loop(THINK, **thinking) == WEATHER_ANSWER, loop(THINK, **thinking))


@check
def tool_runner() -> None:
    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather in a city.

        Args:
            city: its name
        """
        return SUNNY

    runner = scripted.beta.messages.tool_runner(
        model=SCRIPTED, max_tokens=500, tools=[get_weather], messages=ask(WEATHER)
    )
    expect(runner.until_done().content[-1].text == WEATHER_ANSWER)  # type: ignore[union-attr]


@check
def count_tokens() -> None:
    counted = real.messages.count_tokens(model=REAL, messages=ask(CAPITAL)).input_tokens
    expect(5 < counted < 100, counted)


@check
def errors() -> None:
    try:
        real.messages.create(model="no-such-model", max_tokens=5, messages=ask("x"))
        raise AssertionError("an unknown model was answered")
    except anthropic.NotFoundError as error:
        expect("no-such-model" in error.message, error)
    try:
        real.messages.create(model=REAL, max_tokens=5, messages=ask(TOO_LONG))
        raise AssertionError("a prompt beyond the context was answered")
    except anthropic.BadRequestError as error:
        expect("maximum context length" in error.message, error)


finish()

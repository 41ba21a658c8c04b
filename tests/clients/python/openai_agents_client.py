"""OpenAI Agents SDK: chat and responses models, plain, streamed, with a function tool."""

from __future__ import annotations

from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from exchange import (
    CAPITAL,
    COMPARE,
    REAL,
    REAL_URL,
    SCRIPTED,
    SCRIPTED_URL,
    THINK,
    WEATHER,
    WEATHER_ANSWER,
    check,
    expect,
    finish,
)
from exchange import get_weather as weather
from openai import AsyncOpenAI

set_tracing_disabled(True)
get_weather = function_tool(weather)


def agents(url: str, name: str, **options: Any) -> list[Agent]:
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    models: list[Any] = [OpenAIChatCompletionsModel(name, client), OpenAIResponsesModel(name, client)]
    return [Agent(name="helper", instructions="Be brief.", model=model, **options) for model in models]


@check
async def plain_and_stream() -> None:
    for agent in agents(REAL_URL, REAL, model_settings=ModelSettings(temperature=0, max_tokens=30)):
        answer = (await Runner.run(agent, CAPITAL)).final_output
        expect("Paris" in answer, (agent.model, answer))
        run = Runner.run_streamed(agent, CAPITAL)
        events = [event.type async for event in run.stream_events()]
        expect("Paris" in run.final_output and len(events) > 3, (agent.model, run.final_output))


@check
async def tool_loop() -> None:
    for agent in agents(SCRIPTED_URL, SCRIPTED, tools=[get_weather]):
        for question in (WEATHER, THINK):
            answer = (await Runner.run(agent, question)).final_output
            expect(answer == WEATHER_ANSWER, (agent.model, answer))
        answer = (await Runner.run(agent, COMPARE)).final_output
        expect(answer.startswith("Last I heard: "), (agent.model, answer))


@check
async def tool_loop_stream() -> None:
    for agent in agents(SCRIPTED_URL, SCRIPTED, tools=[get_weather]):
        run = Runner.run_streamed(agent, THINK)
        async for _ in run.stream_events():
            pass
        expect(run.final_output == WEATHER_ANSWER, (agent.model, run.final_output))


finish()

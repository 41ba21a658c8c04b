"""Pydantic AI: the models for chat, responses and messages, streams, tools, structured output by a tool."""

from __future__ import annotations

from typing import Any, Literal

from exchange import (
    AS_DATA,
    CAPITAL,
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
    get_weather,
)
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    name: str
    country: str


class Capital(BaseModel):
    city: str
    is_large: bool
    continent: Literal["Europe", "Asia", "Africa"]


def models(url: str, name: str) -> list[Any]:
    provider = OpenAIProvider(base_url=f"{url}/v1", api_key="none")
    anthropic = AnthropicProvider(base_url=url, api_key="none")
    return [
        OpenAIChatModel(name, provider=provider),
        OpenAIResponsesModel(name, provider=provider),
        AnthropicModel(name, provider=anthropic),
    ]


@check
async def plain_and_stream() -> None:
    for model in models(REAL_URL, REAL):
        agent = Agent(model, model_settings={"max_tokens": 30, "temperature": 0})
        answer = (await agent.run(CAPITAL)).output
        expect("Paris" in answer, (type(model), answer))
        async with agent.run_stream(CAPITAL) as stream:
            text = [piece async for piece in stream.stream_text(delta=True)]
        expect("Paris" in "".join(text), (type(model), text))


@check
async def tool_loop() -> None:
    for model in models(SCRIPTED_URL, SCRIPTED):
        agent = Agent(model, tools=[get_weather])
        for question in (WEATHER, THINK):
            answer = (await agent.run(question)).output
            expect(answer == WEATHER_ANSWER, (type(model), answer))


@check
async def tool_loop_stream() -> None:
    for model in models(SCRIPTED_URL, SCRIPTED):
        agent = Agent(model, tools=[get_weather])
        async with agent.run_stream(WEATHER) as stream:
            answer = await stream.get_output()
        expect(answer == WEATHER_ANSWER, (type(model), answer))


@check
async def structured_output() -> None:
    for model in models(SCRIPTED_URL, SCRIPTED):
        answer = (await Agent(model, output_type=City).run(AS_DATA)).output
        expect(answer == City(name="Paris", country="France"), (type(model), answer))


@check
async def demanded_output() -> None:
    """By a tool, and in the format that the model is held to; of a model that would hardly manage by itself."""
    settings: Any = {"max_tokens": 120, "temperature": 0, "parallel_tool_calls": False}
    for model in models(REAL_URL, REAL):
        answer = (await Agent(model, output_type=Capital, model_settings=settings).run(CAPITAL)).output
        expect(isinstance(answer, Capital), (type(model), answer))
    for model in models(REAL_URL, REAL)[:2]:
        agent = Agent(model, output_type=NativeOutput(Capital), model_settings=settings)
        expect(isinstance((await agent.run(CAPITAL)).output, Capital), type(model))


finish()

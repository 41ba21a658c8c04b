"""LangChain: the chat models of langchain-openai and langchain-anthropic, streams, agents with tools."""

from __future__ import annotations

from typing import Any, Literal

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
    get_weather,
)
from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI, OpenAIEmbeddings
from pydantic import BaseModel

weather = tool(get_weather)


class Capital(BaseModel):
    """A capital."""

    city: str
    is_large: bool
    continent: Literal["Europe", "Asia", "Africa"]


def openai_model(url: str, model: str, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(base_url=f"{url}/v1", api_key="none", model=model, max_retries=0, timeout=60, **options)  # type: ignore[arg-type]


def anthropic_model(url: str, model: str, **options: Any) -> ChatAnthropic:
    return ChatAnthropic(base_url=url, api_key="none", model=model, max_retries=0, timeout=60, **options)  # type: ignore[call-arg, arg-type]


def agent_answer(model: Any, question: str) -> str:
    state = create_agent(model, [weather]).invoke({"messages": [("user", question)]})
    return str(state["messages"][-1].text)


@check
def openai_invoke_and_batch() -> None:
    model = openai_model(REAL_URL, REAL, temperature=0, max_tokens=30)
    expect("Paris" in model.invoke(CAPITAL).text)
    expect(all("Paris" in answer.text for answer in model.batch([CAPITAL, CAPITAL])))


@check
def openai_stream() -> None:
    model = openai_model(REAL_URL, REAL, temperature=0, max_tokens=30, stream_usage=True)
    chunks = list(model.stream(CAPITAL))
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole += chunk  # type: ignore[assignment]
    expect("Paris" in whole.text and whole.usage_metadata, whole)


@check
def openai_tool_loop() -> None:
    for streaming in (False, True):
        model = openai_model(SCRIPTED_URL, SCRIPTED, streaming=streaming)
        expect(agent_answer(model, WEATHER) == WEATHER_ANSWER)
        expect(agent_answer(model, COMPARE).startswith("Last I heard: "))


@check
def responses_tool_loop() -> None:
    model = openai_model(SCRIPTED_URL, SCRIPTED, use_responses_api=True)
    expect(agent_answer(model, WEATHER) == WEATHER_ANSWER)
    expect(agent_answer(model, THINK) == WEATHER_ANSWER)
    options: Any = {"store": False, "include": ["reasoning.encrypted_content"], "streaming": True}
    stateless = openai_model(SCRIPTED_URL, SCRIPTED, use_responses_api=True, **options)
    expect(agent_answer(stateless, THINK) == WEATHER_ANSWER)


@check
def anthropic_invoke_and_stream() -> None:
    model = anthropic_model(REAL_URL, REAL, temperature=0, max_tokens=30)
    expect("Paris" in model.invoke(CAPITAL).text)
    expect("Paris" in "".join(chunk.text for chunk in model.stream(CAPITAL)))


@check
def anthropic_tool_loop() -> None:
    model = anthropic_model(SCRIPTED_URL, SCRIPTED, max_tokens=500)
    expect(agent_answer(model, WEATHER) == WEATHER_ANSWER)
    budget: Any = {"type": "enabled", "budget_tokens": 2000}
    thinking = anthropic_model(SCRIPTED_URL, SCRIPTED, max_tokens=5000, thinking=budget)
    expect(agent_answer(thinking, THINK) == WEATHER_ANSWER)


@check
def completions() -> None:
    model = OpenAI(base_url=f"{REAL_URL}/v1", api_key="none", model=REAL, max_tokens=8, temperature=0)  # type: ignore[call-arg, arg-type]
    whole = model.invoke("The capital of France is")
    expect(whole and whole == "".join(model.stream("The capital of France is")), whole)


@check
def structured_output() -> None:
    model = openai_model(REAL_URL, REAL, temperature=0, max_tokens=120)
    for method in ("json_schema", "function_calling"):
        answer = model.with_structured_output(Capital, method=method).invoke(CAPITAL)
        expect(isinstance(answer, Capital), (method, answer))
    answer = anthropic_model(REAL_URL, REAL, max_tokens=120).with_structured_output(Capital).invoke(CAPITAL)
    expect(isinstance(answer, Capital), answer)


@check
def embeddings() -> None:
    model = OpenAIEmbeddings(
        base_url=f"{REAL_URL}/v1", api_key="none", model=REAL, check_embedding_ctx_length=False, max_retries=0
    )  # type: ignore[call-arg]  # texts as they are, not tokens of another model
    first, second = model.embed_documents(["a dog", "a cat"])
    expect(model.embed_query("a dog") == first != second, (first[:4], second[:4]))


finish()

"""LiteLLM: the providers openai, hosted_vllm and anthropic, streams, a tool loop, its own errors."""

from __future__ import annotations

import json
from typing import Any

import litellm
from exchange import (
    CAPITAL,
    REAL,
    REAL_URL,
    SCRIPTED,
    SCRIPTED_URL,
    TOO_LONG,
    WEATHER,
    WEATHER_ANSWER,
    check,
    expect,
    finish,
    get_weather,
)

litellm.telemetry = False
litellm.suppress_debug_info = True
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}]
PROVIDERS = {"openai": "/v1", "hosted_vllm": "/v1", "anthropic": ""}


def complete(provider: str, url: str, model: str, messages: list[Any], **options: Any) -> Any:
    base = url + PROVIDERS[provider]
    options = {"api_base": base, "api_key": "none", "num_retries": 0, "timeout": 60, "max_tokens": 500, **options}
    return litellm.completion(model=f"{provider}/{model}", messages=messages, **options)


def ask(text: str) -> list[Any]:
    return [{"role": "user", "content": text}]


@check
def plain_and_stream() -> None:
    for provider in PROVIDERS:
        whole = complete(provider, REAL_URL, REAL, ask(CAPITAL), max_tokens=30, temperature=0)
        expect("Paris" in whole.choices[0].message.content, whole)
        chunks = list(complete(provider, REAL_URL, REAL, ask(CAPITAL), max_tokens=30, temperature=0, stream=True))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        expect("Paris" in text, (provider, text))


def loop(provider: str, stream: bool) -> str:
    messages = ask(WEATHER)
    for _ in range(4):
        answer = complete(provider, SCRIPTED_URL, SCRIPTED, messages, tools=TOOLS, stream=stream)
        if stream:
            answer = litellm.stream_chunk_builder(list(answer), messages=messages)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return str(message.content)
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("the loop does not end")


@check
def tool_loop() -> None:
    for provider in PROVIDERS:
        for stream in (False, True):
            text = loop(provider, stream)
            expect(text == WEATHER_ANSWER, (provider, stream, text))


@check
def responses() -> None:
    answer = litellm.responses(
        model=f"openai/{REAL}", input=CAPITAL, api_base=f"{REAL_URL}/v1", api_key="none", max_output_tokens=30
    )
    expect("Paris" in json.dumps(answer.model_dump(mode="json")["output"]), answer)


@check
def text_completion() -> None:
    answer = litellm.text_completion(
        model=f"text-completion-openai/{REAL}",
        prompt="The capital of France is",
        api_base=f"{REAL_URL}/v1",
        api_key="none",
        max_tokens=8,
    )
    expect(answer.choices[0].text, answer)


@check
def errors() -> None:
    try:
        complete("openai", REAL_URL, REAL, ask(TOO_LONG), max_tokens=5)
        raise AssertionError("a prompt beyond the context was answered")
    except litellm.ContextWindowExceededError as error:
        expect("maximum context length" in str(error), error)
    try:
        complete("openai", REAL_URL, "no-such-model", ask("x"))
        raise AssertionError("an unknown model was answered")
    except litellm.NotFoundError as error:
        expect("no-such-model" in str(error), error)


@check
def embedding() -> None:
    texts = ["a dog", "a cat", "a dog"]
    for provider in ("openai", "hosted_vllm"):
        answer = litellm.embedding(
            model=f"{provider}/{REAL}", input=texts, api_base=f"{REAL_URL}/v1", api_key="none", timeout=60
        )
        vectors = [one["embedding"] for one in answer.data]
        expect(len(vectors) == 3 and vectors[0] == vectors[2] != vectors[1], (provider, answer.usage))


@check
def rerank() -> None:
    documents = ["a car", "a dog", "a house"]
    answer = litellm.rerank(
        model=f"hosted_vllm/{REAL}", query="a dog", documents=documents, top_n=2, api_base=REAL_URL, api_key="none"
    )
    expect(next(one["index"] for one in answer.results) == 1 and len(answer.results) == 2, answer)


finish()

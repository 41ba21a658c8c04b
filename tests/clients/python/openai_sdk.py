"""The official Python client: completions, chat, responses, tool loops, errors."""

from __future__ import annotations

import json
from typing import Any, Literal

import openai
from exchange import (
    CAPITAL,
    COMPARE,
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
from pydantic import BaseModel

real = openai.OpenAI(base_url=f"{REAL_URL}/v1", api_key="none", max_retries=0, timeout=60)
scripted = openai.OpenAI(base_url=f"{SCRIPTED_URL}/v1", api_key="none", max_retries=0, timeout=60)
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS: Any = [{"type": "function", "function": {"name": "get_weather", "description": "Weather", "parameters": SCHEMA}}]


class Capital(BaseModel):
    city: str
    is_large: bool
    continent: Literal["Europe", "Asia", "Africa"]


def ask(text: str) -> Any:
    return [{"role": "user", "content": text}]


@check
def models() -> None:
    expect(REAL in [model.id for model in real.models.list()])
    expect(real.models.retrieve(REAL).id == REAL)


@check
def chat() -> None:
    answer = real.chat.completions.create(model=REAL, messages=ask(CAPITAL), max_tokens=30, temperature=0)
    expect("Paris" in (answer.choices[0].message.content or ""), answer)
    expect(answer.usage and answer.usage.completion_tokens > 0, answer.usage)


@check
def chat_stream() -> None:
    options: Any = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(
        real.chat.completions.create(model=REAL, messages=ask(CAPITAL), max_tokens=30, temperature=0, **options)
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect("Paris" in text, text)
    expect(len(chunks) > 3 and chunks[-1].usage.completion_tokens > 0, chunks[-1])


@check
def chat_logprobs() -> None:
    answer = real.chat.completions.create(
        model=REAL, messages=ask(CAPITAL), max_tokens=3, logprobs=True, top_logprobs=3, temperature=0
    )
    content = answer.choices[0].logprobs.content  # type: ignore[union-attr]
    expect(len(content or ()) == 3 and all(len(token.top_logprobs) == 3 for token in content or ()), answer)


@check
def completions() -> None:
    fields: Any = {"model": REAL, "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
    whole = real.completions.create(**fields).choices[0].text
    streamed = "".join(chunk.choices[0].text for chunk in real.completions.create(**fields, stream=True))
    expect(whole and whole == streamed, (whole, streamed))


@check
def responses() -> None:
    answer = real.responses.create(model=REAL, input=CAPITAL, max_output_tokens=30, temperature=0)
    expect("Paris" in answer.output_text, answer)
    more = real.responses.create(
        model=REAL, input="And of Italy?", previous_response_id=answer.id, max_output_tokens=30
    )
    expect(more.output_text, more)


@check
def responses_stream() -> None:
    with real.responses.stream(model=REAL, input=CAPITAL, max_output_tokens=30, temperature=0) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        expect("Paris" in text and stream.get_final_response().output_text == text, text)


def loop(question: str) -> str:
    messages = ask(question)
    for _ in range(4):
        message = scripted.chat.completions.create(model=SCRIPTED, messages=messages, tools=TOOLS).choices[0].message
        messages.append(message)
        if not message.tool_calls:
            return message.content or ""
        for call in message.tool_calls:
            result = get_weather(**json.loads(call.function.arguments))  # type: ignore[union-attr]
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    raise AssertionError("the loop does not end")


@check
def tool_loop() -> None:
    expect(loop(WEATHER) == WEATHER_ANSWER, loop(WEATHER))
    expect(loop(COMPARE) == "Last I heard: rain in Oslo", loop(COMPARE))  # two calls at once
    expect(loop(THINK) == WEATHER_ANSWER, loop(THINK))  # reasoning beside the call


@check
def tool_loop_stream() -> None:
    with scripted.chat.completions.stream(model=SCRIPTED, messages=ask(WEATHER), tools=TOOLS) as stream:
        message = stream.get_final_completion().choices[0].message
    (call,) = message.tool_calls or ()
    expect(json.loads(call.function.arguments) == {"city": "Paris"}, message)
    messages = [*ask(WEATHER), message, {"role": "tool", "tool_call_id": call.id, "content": SUNNY}]
    with scripted.chat.completions.stream(model=SCRIPTED, messages=messages, tools=TOOLS) as stream:
        text = stream.get_final_completion().choices[0].message.content
    expect(text == WEATHER_ANSWER, text)


@check
def responses_tool_loop() -> None:
    tools: Any = [{"type": "function", "name": "get_weather", "parameters": SCHEMA, "strict": False}]
    first = scripted.responses.create(model=SCRIPTED, input=THINK, tools=tools)
    (call,) = [item for item in first.output if item.type == "function_call"]
    result: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": SUNNY}]
    last = scripted.responses.create(model=SCRIPTED, input=result, previous_response_id=first.id, tools=tools)
    expect(last.output_text == WEATHER_ANSWER, last)
    items: Any = [*ask(THINK), *first.output, *result]  # the same without the server's memory
    last = scripted.responses.create(model=SCRIPTED, input=items, tools=tools, store=False)
    expect(last.output_text == WEATHER_ANSWER, last)


@check
def errors() -> None:
    try:
        real.chat.completions.create(model="no-such-model", messages=ask("x"))
        raise AssertionError("an unknown model was answered")
    except openai.NotFoundError as error:
        expect("no-such-model" in error.message, error)
    try:
        real.chat.completions.create(model=REAL, messages=ask(TOO_LONG), max_tokens=5)
        raise AssertionError("a prompt beyond the context was answered")
    except openai.BadRequestError as error:
        expect("maximum context length" in error.message, error)
    try:
        real.chat.completions.create(model=REAL, messages=ask("x"), temperature=-1)
        raise AssertionError("a wrong temperature was accepted")
    except openai.BadRequestError as error:
        expect("temperature" in error.message, error)


@check
async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=f"{REAL_URL}/v1", api_key="none", max_retries=0) as client:
        stream = await client.chat.completions.create(
            model=REAL, messages=ask(CAPITAL), max_tokens=30, temperature=0, stream=True
        )
        text = "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])
        expect("Paris" in text, text)


@check
def parse() -> None:
    answer = real.chat.completions.parse(model=REAL, messages=ask(CAPITAL), response_format=Capital, max_tokens=120)
    expect(isinstance(answer.choices[0].message.parsed, Capital), answer)
    with real.chat.completions.stream(
        model=REAL, messages=ask(CAPITAL), response_format=Capital, max_tokens=120
    ) as stream:
        expect(isinstance(stream.get_final_completion().choices[0].message.parsed, Capital))


@check
def responses_parse() -> None:
    answer = real.responses.parse(model=REAL, input=CAPITAL, text_format=Capital, max_output_tokens=120)
    expect(isinstance(answer.output_parsed, Capital), answer)


@check
def demanded_tools() -> None:
    tool = openai.pydantic_function_tool(Capital)
    answer = real.chat.completions.parse(
        model=REAL, messages=ask(CAPITAL), tools=[tool], tool_choice="required", parallel_tool_calls=False,
        max_tokens=120,
    )  # fmt: skip
    (call,) = answer.choices[0].message.tool_calls or ()
    expect(isinstance(call.function.parsed_arguments, Capital), answer)
    expect(answer.choices[0].finish_reason == "tool_calls", answer)


@check
def embeddings() -> None:
    texts = ["a dog", "a cat", "a dog"]
    coded = real.embeddings.create(model=REAL, input=texts)  # in base64, unless told otherwise
    plain = real.embeddings.create(model=REAL, input=texts, encoding_format="float")
    first, second, third = (one.embedding for one in coded.data)
    expect([one.index for one in coded.data] == [0, 1, 2] and first == third != second, coded.usage)
    expect(max(abs(a - b) for a, b in zip(plain.data[1].embedding, second, strict=True)) < 1e-6)
    expect(coded.usage.prompt_tokens > 0 and abs(sum(value * value for value in first) - 1) < 1e-4, coded.usage)
    try:
        real.embeddings.create(model=REAL, input=["a", ""])
        raise AssertionError("an empty text was embedded")
    except openai.BadRequestError as error:
        expect(error.param == "input[1]", error)


finish()

"""The official Python client with pictures: chat, responses, streams, what tools give, vectors for a prompt, errors."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import openai
from exchange import check, expect, finish
from seeing import FIRST, MODEL, QUESTION, SECOND, URL, data_url

client = openai.OpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0, timeout=120)
TEXT = {"type": "text", "text": QUESTION}
given: Any = {"model": MODEL, "temperature": 0, "max_tokens": 10}


def shown(*pictures: Path, **fields: Any) -> Any:
    parts = [{"type": "image_url", "image_url": {"url": data_url(each), "detail": "high"}} for each in pictures]
    messages: Any = [{"role": "user", "content": [*parts, TEXT]}]
    return client.chat.completions.create(messages=messages, **given, **fields)


def text(answer: Any) -> str:
    return str(answer.choices[0].message.content)


@check
def chat() -> None:
    first, both = shown(FIRST), shown(FIRST, SECOND)
    expect(text(first) == text(shown(FIRST)) and first.usage.prompt_tokens > 16, first)
    expect(len({text(first), text(shown(SECOND)), text(both)}) == 3, both)
    expect(both.usage.prompt_tokens > first.usage.prompt_tokens + 10, both.usage)


@check
def chat_stream() -> None:
    chunks = shown(FIRST, stream=True)
    expect("".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text(shown(FIRST)))


@check
def responses() -> None:
    items: Any = [{"type": "input_image", "image_url": data_url(FIRST), "detail": "auto"}]
    asked: Any = [{"role": "user", "content": [*items, {"type": "input_text", "text": QUESTION}]}]
    fields: Any = {"model": MODEL, "temperature": 0, "max_output_tokens": 10}
    answer = client.responses.create(input=asked, **fields)
    expect(answer.output_text == text(shown(FIRST)), answer)
    more = client.responses.create(input="and now", previous_response_id=answer.id, **fields)
    expect(more.usage and more.usage.input_tokens > 30, more)
    with client.responses.stream(input=asked, **fields) as stream:
        expect("".join(e.delta for e in stream if e.type == "response.output_text.delta") == answer.output_text)


@check
def pictures_of_tools() -> None:
    """What a tool gives may be a picture."""
    call = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
    answers = []
    for picture in (FIRST, SECOND):
        result = [{"type": "input_image", "image_url": data_url(picture)}]
        items: Any = [{"role": "user", "content": QUESTION}, call]
        items.append({"type": "function_call_output", "call_id": "c1", "output": result})
        answers.append(client.responses.create(model=MODEL, input=items, temperature=0, max_output_tokens=10))
    expect(answers[0].output_text != answers[1].output_text, answers)


@check
def prompt_embeds() -> None:
    vectors = struct.pack("<192f", *[0.01] * 192)  # [3, 64]
    head = "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 64), }".ljust(117) + "\n"
    file = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode() + vectors
    extra = {"prompt_embeds": base64.b64encode(file).decode()}
    answer = client.completions.create(prompt="", extra_body=extra, **given)
    expect(answer.usage and answer.usage.prompt_tokens == 3, answer)


@check
def errors() -> None:
    for url, words in (
        ("data:image/png;base64,AAAA", "image_url.url"),
        ("http://127.0.0.1:1/cat.png", "image_url.url"),
        ("file:///etc/passwd", "image_url.url"),
    ):
        parts: Any = [{"type": "image_url", "image_url": {"url": url}}, TEXT]
        try:
            client.chat.completions.create(messages=[{"role": "user", "content": parts}], **given)
            raise AssertionError(f"{url} was shown")
        except openai.BadRequestError as error:
            expect(words in (error.param or ""), error)


@check
async def asynchronous() -> None:
    async with openai.AsyncOpenAI(base_url=f"{URL}/v1", api_key="none", max_retries=0) as other:
        parts: Any = [{"type": "image_url", "image_url": {"url": data_url(FIRST)}}, TEXT]
        answer = await other.chat.completions.create(messages=[{"role": "user", "content": parts}], **given)
    expect(text(answer) == text(shown(FIRST)), answer)


finish()

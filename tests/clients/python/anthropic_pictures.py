"""Anthropic's Python client with pictures: messages, streams, results of tools, token counts, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
from exchange import check, expect, finish
from seeing import FIRST, MODEL, QUESTION, SECOND, URL, coded, kind

client = anthropic.Anthropic(base_url=URL, api_key="none", max_retries=0, timeout=120)
TEXT = {"type": "text", "text": QUESTION}
given: Any = {"model": MODEL, "max_tokens": 10, "extra_body": {"temperature": 0}}


def block(picture: Path) -> dict[str, Any]:
    return {"type": "image", "source": {"type": "base64", "media_type": kind(picture), "data": coded(picture)}}


def asked(*pictures: Path) -> Any:
    return [{"role": "user", "content": [*map(block, pictures), TEXT]}]


def text(answer: Any) -> str:
    return str(answer.content[0].text)


def size(answer: Any) -> int:
    """Tokens of the prompt, those that were known included."""
    return int(answer.usage.input_tokens + (answer.usage.cache_read_input_tokens or 0))


@check
def messages() -> None:
    first, both = (client.messages.create(messages=asked(*each), **given) for each in ((FIRST,), (FIRST, SECOND)))
    again = client.messages.create(messages=asked(FIRST), **given)
    other = client.messages.create(messages=asked(SECOND), **given)
    expect(text(first) == text(again) and len({text(first), text(other), text(both)}) == 3, both)
    expect(size(both) > size(first) + 10, both.usage)


@check
def stream() -> None:
    with client.messages.stream(messages=asked(FIRST), **given) as events:
        told = "".join(events.text_stream)
    expect(told == text(client.messages.create(messages=asked(FIRST), **given)), told)


@check
def results_of_tools() -> None:
    use = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
    answers = []
    for picture in (FIRST, SECOND):
        result = {"type": "tool_result", "tool_use_id": "t1", "content": [block(picture), TEXT]}
        talk: Any = [
            {"role": "user", "content": QUESTION},
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
        answers.append(text(client.messages.create(messages=talk, **given)))
    expect(answers[0] != answers[1], answers)


@check
def count_tokens() -> None:
    counted = client.messages.count_tokens(model=MODEL, messages=asked(FIRST)).input_tokens
    expect(counted == size(client.messages.create(messages=asked(FIRST), **given)), counted)


@check
def errors() -> None:
    broken = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    try:
        client.messages.create(messages=[{"role": "user", "content": [broken]}], **given)  # type: ignore[list-item]
        raise AssertionError("nothing was shown")
    except anthropic.BadRequestError as error:
        expect("messages[0].content[0]" in str(error), error)


finish()

"""Two engines and two API processes behind one address answer requests of all kinds as one engine does."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.helpers.wide import mostly_wide
from tests.server.helpers import ServerProcess

pytestmark = [pytest.mark.engine, pytest.mark.warm]

FLAGS = ("--dtype", "float32", "--max-model-len", "256", "--num-gpu-blocks-override", "1000")
TEMPLATE = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
VARYING = ("id", "created", "request_id", "x-request-id")


def request(number: int) -> tuple[str, dict[str, Any]]:
    """Of eight kinds."""
    kind = number % 8
    greedy = number % 3 == 0 and kind not in (0, 5)
    body: dict[str, Any] = {"max_tokens": 8 + number % 24, "seed": number, "temperature": 0 if greedy else 0.8}
    if kind in (0, 1, 2):
        shared = "A long beginning that several chats have in common. " * (number % 2)
        body |= {"messages": [{"role": "user", "content": f"{shared}What is {number}?"}], "logprobs": kind == 1}
        body |= {"stream": kind == 2, "n": 2 if kind == 0 else 1}
        return "/v1/chat/completions", body
    body |= {"prompt": f"The number {number} is", "ignore_eos": kind == 3, "stream": kind in (4, 6)}
    if kind == 5:
        body |= {"logprobs": 3, "n": 2, "prompt": [5 + number, 6, 7]}
    elif kind == 6:
        body |= {"stop": ["e", "the"], "max_tokens": 40}
    elif kind == 7:
        body |= {"prompt": ["one", f"two {number}"], "presence_penalty": 0.5, "echo": True}
    return "/v1/completions", body


def without(body: Any) -> Any:
    """Less what is different every time."""
    if isinstance(body, dict):
        return {name: without(value) for name, value in body.items() if name not in VARYING}
    return [without(value) for value in body] if isinstance(body, list) else body


def events(text: str) -> Any:
    """What a stream says of each choice, however it was cut into events."""
    found: dict[int, list[Any]] = {}
    for line in text.splitlines():
        if line.startswith("data: {"):
            for choice in json.loads(line[6:])["choices"]:
                said = found.setdefault(choice["index"], ["", None])
                said[0] += choice.get("text") or choice.get("delta", {}).get("content") or ""
                said[1] = choice["finish_reason"] or said[1]
    assert text.rstrip().endswith("data: [DONE]"), text[-200:]
    return found


async def answers(url: str, count: int) -> list[Any]:
    limits = httpx.Limits(max_connections=40)
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=200, limits=limits) as client:

        async def ask(number: int) -> Any:
            path, body = request(number)
            reply = await client.post(path, json={"model": "m", **body})
            assert reply.status_code == 200, reply.text
            return events(reply.text) if body.get("stream") else without(reply.json())

        return list(await asyncio.gather(*(ask(number) for number in range(count))))


@pytest.mark.parametrize("count", mostly_wide([48, 200], [48]))
def test_many_processes_answer_as_one_does(count: int, tiny_model: Callable[[str], Path]) -> None:
    found = []
    for flags in ((), ("--data-parallel-size", "2", "--api-server-count", "2")):
        named = ("--served-model-name", "m", "--chat-template", TEMPLATE)
        with ServerProcess(tiny_model("llama"), *FLAGS, *named, *flags) as server:
            found.append(asyncio.run(answers(server.url, count)))
    for number, (one, many) in enumerate(zip(*found, strict=True)):
        assert many == one, request(number)

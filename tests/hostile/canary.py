"""Requests whose answers are known: whatever happened before, they are the same."""

from __future__ import annotations

import json
from typing import Any

import httpx

CANARIES: tuple[tuple[str, dict[str, Any]], ...] = (
    (
        "/v1/completions",
        {"prompt": [11, 12, 13], "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 2},
    ),
    ("/v1/completions", {"prompt": "the river runs", "max_tokens": 12, "temperature": 0.9, "seed": 5, "n": 2}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "to be or"}], "max_tokens": 8, "seed": 3}),
    ("/tokenize", {"prompt": "one two three <|end|> né"}),
)


def ask(client: httpx.Client) -> list[str]:
    """What the answers say, without what differs from one time to the next: ids and clocks."""
    return [_told(client.post(path, json=body)) for path, body in CANARIES]


def _told(reply: httpx.Response) -> str:
    if reply.status_code != 200:
        return f"status {reply.status_code}: {reply.text[:300]}"
    body = reply.json()
    return json.dumps({key: body[key] for key in ("choices", "usage", "tokens") if key in body}, sort_keys=True)

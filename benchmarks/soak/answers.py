"""Answers, whole or streamed, brought to one form: per choice its text, its tokens and why it ended."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

Choice = tuple[str, tuple[int, ...], str]  # text, token ids, finish reason


@dataclass
class _Parts:
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = ""


def of_body(body: bytes) -> list[Choice]:
    answer = json.loads(body)
    if "data" in answer:  # vectors, in base64
        return [(one["embedding"], (), "") for one in answer["data"]]
    return _joined([answer])


def of_stream(body: bytes) -> list[Choice] | None:
    """None when the stream broke: it ended without [DONE]."""
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: ")]
    if not lines or lines[-1].strip() != b"[DONE]":
        return None
    return _joined([json.loads(line) for line in lines[:-1]])


def error_of_stream(body: bytes) -> str:
    """The reason of an error event; "" where there is none."""
    for line in body.split(b"\n"):
        if line.startswith(b"data: {") and b'"error"' in line[:40]:
            error = json.loads(line[6:])["error"]
            return str(error.get("reason") or error.get("type"))
    return ""


def _joined(events: Iterable[Mapping[str, Any]]) -> list[Choice]:
    parts: dict[int, _Parts] = {}
    for event in events:
        for choice in event.get("choices", ()):
            part = parts.setdefault(choice["index"], _Parts())
            said = choice.get("delta") or choice.get("message") or choice
            part.text += said.get("content") or said.get("text") or ""
            part.token_ids += choice.get("token_ids") or ()
            part.finish_reason = choice.get("finish_reason") or part.finish_reason
    return [(one.text, tuple(one.token_ids), one.finish_reason) for _, one in sorted(parts.items())]

"""`truncation: auto`: a conversation that is too long loses its oldest items until it fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from cadence.entrypoints.server.chat.engine import ChatEngine
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.http.ignored import Ignored
from cadence.entrypoints.server.protocol.responses.response_messages import to_messages

Item = Mapping[str, Any]


async def truncate_to_fit(
    job: ChatJob, items: Sequence[Item], instructions: str | None, chat: ChatEngine, max_model_len: int
) -> tuple[ChatJob, int]:
    """The job with the most of its items that fit, and how many were dropped.

    Room is kept for the output's limit, but for no more than half of the model's length. Instructions at the start
    stay, and so does the last item: where these are too long the engine says so.
    """
    room = max_model_len - min(max(1, job.params.max_tokens or 1), max_model_len // 2)
    starts = [0, *starts_of(items)]
    low, high = 0, len(starts) - 1  # the one that is looked for lies between them
    while low < high:
        middle = (low + high) // 2 if high < len(starts) - 1 or low else 0  # most conversations fit as they are
        shorter = _from(job, items, starts[middle], instructions, chat)
        if await chat.count(shorter) <= room:
            high = middle
        else:
            low = middle + 1
    dropped = max(0, starts[low] - num_leading(items))
    return (_from(job, items, starts[low], instructions, chat), dropped) if dropped else (job, 0)


def num_leading(items: Sequence[Item]) -> int:
    """Items of the system or the developer that a conversation begins with."""
    for number, item in enumerate(items):
        if (item.get("type") or "message") != "message" or item.get("role") not in ("system", "developer"):
            return number
    return len(items)


def starts_of(items: Sequence[Item]) -> list[int]:
    """Where a shorter conversation may begin, after its instructions: where no output is without its call, nor a call
    or a message without its reasoning."""
    called: dict[object, int] = {}
    torn = [False] * len(items)
    for number, item in enumerate(items):
        kind, call_id = item.get("type") or "message", item.get("call_id") or item.get("id")
        if number and (items[number - 1].get("type") == "reasoning"):
            torn[number] = True
        if str(kind).endswith("_output"):
            begin = called.get(call_id, number - 1) if isinstance(call_id, str) else number - 1
            torn[begin + 1 : number + 1] = [True] * (number - begin)
        elif str(kind).endswith("_call") and isinstance(call_id, str):
            called[call_id] = number
    return [number for number in range(num_leading(items) + 1, len(items)) if not torn[number]]


def _from(job: ChatJob, items: Sequence[Item], start: int, instructions: str | None, chat: ChatEngine) -> ChatJob:
    kept = [*items[: min(start, num_leading(items))], *items[start:]]
    messages, media = chat.split_media(to_messages(kept, len(kept), instructions, Ignored()))
    return dataclasses.replace(job, messages=messages, media=media)

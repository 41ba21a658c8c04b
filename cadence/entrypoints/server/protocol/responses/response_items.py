"""A conversation's items: the list of them, page by page, and those that are named instead of sent."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cadence.core.errors import InvalidRequestError

MAX_LIMIT = 100
DEFAULT_LIMIT = 20
MAX_ID = 256  # characters of an item's
REFERENCE = "item_reference"

Item = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ItemPage:
    """The part of a list that a client asks for."""

    after: str
    limit: int
    ascending: bool

    @classmethod
    def of(cls, query: Mapping[str, str]) -> ItemPage:
        for name in query:
            if name not in ("after", "limit", "order"):
                raise InvalidRequestError(
                    f"unknown parameter {name[:80]!r}: after, limit and order are known", name[:80]
                )
        limit, order = query.get("limit", str(DEFAULT_LIMIT)), query.get("order", "desc")
        if not re.fullmatch("[0-9]{1,9}", limit) or not 1 <= int(limit) <= MAX_LIMIT:
            raise InvalidRequestError(f"limit must be between 1 and {MAX_LIMIT}", "limit")
        if order not in ("asc", "desc"):
            raise InvalidRequestError("order must be asc or desc", "order")
        return cls(query.get("after", ""), int(limit), order == "asc")

    def read(self, items: Sequence[Item]) -> dict[str, Any]:
        ordered = list(items) if self.ascending else list(reversed(items))
        names = [item["id"] for item in ordered]
        if self.after and self.after not in names:
            raise InvalidRequestError(f"after names no item of this response: {self.after[:80]!r}", "after")
        start = names.index(self.after) + 1 if self.after else 0
        page = ordered[start : start + self.limit]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": start + len(page) < len(ordered),
        }


def listed(items: Sequence[Mapping[str, Any]], response_id: str) -> list[Item]:
    """Items as lists show them: each with an id, messages with a list of parts."""
    return [_listed(item, f"item_{response_id.removeprefix('resp_')}_{n}") for n, item in enumerate(items)]


def ids_of(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return [item["id"] for item in items if isinstance(item.get("id"), str) and 0 < len(item["id"]) <= MAX_ID]


def referenced(items: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """The ids of stored items that stand for them -> the field that names each."""
    names: dict[str, str] = {}
    for number, item in enumerate(items):
        if item.get("type") == REFERENCE:
            name = item.get("id")
            if not isinstance(name, str) or not 0 < len(name) <= MAX_ID:
                where = f"input[{number}].id"
                raise InvalidRequestError(f"{where} must be a string of 1 to {MAX_ID} characters", where)
            names.setdefault(name, f"input[{number}].id")
    return names


def put_in_place(items: Sequence[Item], conversations: Mapping[str, bytes], max_bytes: int) -> list[Item]:
    """Items with each reference replaced by what it names. `conversations` are JSON, by the id that leads to each."""
    decoded: dict[bytes, dict[str, Item]] = {}
    left = max_bytes
    complete = []
    for number, item in enumerate(items):
        if item.get("type") == REFERENCE:
            conversation = conversations[item["id"]]
            if conversation not in decoded:
                listed_items = msgspec.json.decode(conversation)
                decoded[conversation] = {one["id"]: one for one in listed_items if isinstance(one.get("id"), str)}
            item = decoded[conversation][item["id"]]
            left -= len(msgspec.json.encode(item))
            if left < 0:
                message = f"the items that input refers to are larger than the limit of {max_bytes} bytes"
                raise InvalidRequestError(message, f"input[{number}]")
        complete.append(item)
    return complete


def _listed(item: Mapping[str, Any], name: str) -> Item:
    kind = item.get("type") or "message"
    full: Item = {"status": "completed", **item, "type": kind}
    full["id"] = item["id"] if isinstance(item.get("id"), str) else name
    if kind == "message" and isinstance(full.get("content"), str):
        part = "output_text" if full.get("role") == "assistant" else "input_text"
        extra: Item = {"annotations": []} if part == "output_text" else {}
        full["content"] = [{"type": part, "text": full["content"], **extra}]
    return full

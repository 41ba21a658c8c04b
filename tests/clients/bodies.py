"""Request bodies of clients, small: `python -m tests.clients.bodies FILE` reads what `--record FILE` wrote and puts
them into tests/server/client_bodies.json, which tests/server/test_client_bodies.py posts without any client.

Of each client and path as many bodies are kept as it takes to show every field it sends; long texts are left out, lists
of tools and of messages hold one of each kind."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

BODIES = Path(__file__).parents[1] / "server" / "client_bodies.json"
MAX_TEXT = 24  # characters that say what is meant; longer texts are the clients' own, or name the machine
TEXT = "some text"
WORD_FIELDS = (
    "include",
    "encrypted_content",
    "type",
    "role",
    "name",
    "id",
    "call_id",
    "tool_call_id",
    "tool_use_id",
    "arguments",
)  # kept whole
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
SCHEMAS = ("parameters", "input_schema", "schema")


def small(value: Any, field: str = "") -> Any:
    if isinstance(value, str):
        return value if field in WORD_FIELDS or len(value) <= MAX_TEXT else TEXT
    if isinstance(value, dict):
        return {key: SCHEMA if key in SCHEMAS else small(held, key) for key, held in value.items()}
    if isinstance(value, list) and field in ("prompt", "tokens"):
        return _small_ids(value)
    if isinstance(value, list):
        return _one_of_each([small(item, field) for item in value])
    return value


def _small_ids(value: list[Any]) -> list[Any]:
    """Token ids that every vocabulary has."""
    if value and isinstance(value[0], list):
        return [_small_ids(value[0])]
    return [100 + place for place, item in enumerate(value[:8])] if isinstance(value[0], int) else value[:2]


def _one_of_each(items: list[Any]) -> list[Any]:
    """Those that show a field which none before them has; of numbers the first few."""
    if not all(isinstance(item, dict) for item in items):
        return items[:8]
    seen: set[str] = set()
    kept = []
    for item in items:
        fields = set(paths(item))
        if not fields <= seen or item.get("role") in ("user", "tool"):
            kept.append(item)
        seen |= fields
    return kept


def paths(value: Any, where: str = "") -> Iterator[str]:
    """Every field below `value`, and the words that say what kind of thing an object is."""
    if isinstance(value, dict):
        for key, held in value.items():
            if key in ("type", "role") and isinstance(held, str):
                yield f"{where}.{key}={held}"
            yield from paths(held, f"{where}.{key}")
    elif isinstance(value, list):
        for item in value:
            yield from paths(item, f"{where}[]")
    else:
        yield f"{where}:{type(value).__name__}"


def collect(lines: Iterator[str]) -> list[dict[str, Any]]:
    kept: list[dict[str, Any]] = []
    seen: dict[tuple[str, str], set[str]] = {}
    for line in lines:
        entry = json.loads(line)
        method, _, path = entry["request"].partition(" ")
        if method != "POST" or entry["status"] != 200 or _builds_on_others(entry["body"]):
            continue
        body = small({**entry["body"], "model": "fake"})
        fields = set(paths(body))
        known = seen.setdefault((entry["client"], path), set())
        if not fields <= known:
            known |= fields
            ignored = sorted(entry["ignored"].split(", ")) if entry["ignored"] else []
            kept.append({"client": entry["client"], "path": path, "ignored": ignored, "body": body})
    return kept


def _builds_on_others(body: dict[str, Any]) -> bool:
    """Whether the server must have kept an earlier answer."""
    given = body.get("input")
    items = given if isinstance(given, list) else []
    return bool(body.get("previous_response_id")) or any(item.get("type") == "item_reference" for item in items)


if __name__ == "__main__":
    with open(sys.argv[1]) as record:
        bodies = collect(record)
    lines = ",\n".join(json.dumps(body, ensure_ascii=False) for body in bodies)
    BODIES.write_text(f"[\n{lines}\n]\n")
    print(f"{len(bodies)} bodies in {BODIES}")

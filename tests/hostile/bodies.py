"""Bodies out of fields and JSON texts: keys may be doubled, values may be anything."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

Pairs = list[tuple[str, bytes]]


def pairs_of(body: Mapping[str, Any]) -> Pairs:
    return [(name, json.dumps(value).encode()) for name, value in body.items()]


def with_field(pairs: Pairs, name: str, text: bytes) -> Pairs:
    """`name` replaced, or added at the end."""
    if not any(known == name for known, _ in pairs):
        return [*pairs, (name, text)]
    return [(known, text if known == name else value) for known, value in pairs]


def join(pairs: Iterable[tuple[str, bytes]]) -> bytes:
    return b"{" + b",".join(json.dumps(name).encode() + b":" + text for name, text in pairs) + b"}"

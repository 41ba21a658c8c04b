"""Which backend compiles a spec: a function of the spec alone, so that a restarted engine chooses as the first did."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from cadence.core.grammar import GrammarBackend, GrammarKind, GrammarSpec

# Repetitions with a bound ({2,50}, maxLength, maxItems) are states of their own to xgrammar, each with a table of
# tokens: some 20 ms and 300 KB each with a vocabulary of 50,000.
MAX_REPETITIONS = 64
_BOUNDS = ("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties")
_REPETITION = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}")
# Of JSON Schema, what xgrammar reads past.
_BEYOND_XGRAMMAR = frozenset({"multipleOf", "uniqueItems", "contains", "minContains", "maxContains", "not", "if"})


def choose_backend(spec: GrammarSpec) -> GrammarBackend:
    if spec.backend is not GrammarBackend.AUTO:
        return spec.backend
    return GrammarBackend.LLGUIDANCE if _suits_llguidance(spec) else GrammarBackend.XGRAMMAR


def _suits_llguidance(spec: GrammarSpec) -> bool:
    match spec.kind:
        case GrammarKind.LARK:
            return True
        case GrammarKind.REGEX | GrammarKind.EBNF:
            return _repetitions(spec.text) > MAX_REPETITIONS
        case GrammarKind.JSON_SCHEMA:
            return bool(spec.whitespace_pattern) or _is_beyond_xgrammar(json.loads(spec.text))
        case GrammarKind.JSON_OBJECT:
            return bool(spec.whitespace_pattern)
        case _:
            return False


def _is_beyond_xgrammar(schema: Any) -> bool:
    objects = list(_objects(schema))
    if any(not _BEYOND_XGRAMMAR.isdisjoint(found) for found in objects):
        return True
    bounds = [found[name] for found in objects for name in _BOUNDS if isinstance(found.get(name), int)]
    patterns = [found["pattern"] for found in objects if isinstance(found.get("pattern"), str)]
    return bool(sum(map(abs, bounds)) + sum(map(_repetitions, patterns)) > MAX_REPETITIONS)


def _repetitions(pattern: str) -> int:
    return sum(max(int(low or 0), int(high or 0)) for low, high in _REPETITION.findall(pattern))


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Every object within a JSON value."""
    todo = [value]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            yield item
            todo += item.values()
        elif isinstance(item, list):
            todo += item

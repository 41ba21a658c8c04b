"""JSON schemas whose strings must not have certain marks within, for a backend that knows no such option."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_ANY = "any_without_marks"
_COMBINING = ("anyOf", "oneOf", "allOf")
_SCHEMAS = ("items", "additionalProperties", "not", "if", "then", "else")
_TABLES = ("properties", "patternProperties", "$defs", "definitions")
_SAID = frozenset({"title", "description", "default", "examples", "$defs", "definitions", "x-guidance"})


def without_marks(schema: Any, marks: Sequence[str]) -> Any:
    """The same with strings, and names of further properties, of a pattern that keeps them free of `marks`. Those of
    escapes need nothing: llguidance writes no character that could stand as it is by an escape."""
    marks = [mark for mark in marks if "\\" not in mark]
    if not marks:
        return schema
    pattern = _free_of(marks)
    root = _Marker(pattern).marked(schema)
    value: dict[str, Any] = {
        "anyOf": [
            {"type": ["null", "boolean", "number"]},
            {"type": "string", "pattern": pattern},
            {"type": "array", "items": {"$ref": f"#/$defs/{_ANY}"}},
            {"type": "object", "patternProperties": {pattern: {"$ref": f"#/$defs/{_ANY}"}},
             "additionalProperties": False},
        ]
    }  # fmt: skip
    return {**root, "$defs": {**root.get("$defs", {}), _ANY: value}}


def _free_of(marks: Sequence[str]) -> str:
    """A pattern: no first character of a mark is followed by the second one of any."""
    first = _set({mark[0] for mark in marks})
    if any(len(mark) == 1 for mark in marks):
        return f"^[^{first}]*$"
    second = _set({mark[1] for mark in marks})
    return f"^([^{first}]|[{first}]+[^{first}{second}])*[{first}]*$"


def _set(chars: set[str]) -> str:
    """Between brackets."""
    return "".join(f"\\{char}" if char in "[]\\^-" else char for char in sorted(chars))


class _Marker:
    def __init__(self, pattern: str) -> None:
        self._pattern = pattern

    def marked(self, node: Any) -> Any:
        if node is True or (isinstance(node, Mapping) and not node.keys() - _SAID):
            said = {} if node is True else node
            tables = {name: self._table(said[name]) for name in ("$defs", "definitions") if name in said}
            return {"$ref": f"#/$defs/{_ANY}", **tables}
        if not isinstance(node, Mapping):
            return node
        inner = dict(node)
        for name in _TABLES:
            if isinstance(node.get(name), Mapping):
                inner[name] = self._table(node[name])
        for name in _SCHEMAS:
            if name in node:
                inner[name] = self.marked(node[name])
        for name in _COMBINING:
            if isinstance(node.get(name), list):
                inner[name] = [self.marked(option) for option in node[name]]
        return self._closed(inner)

    def _table(self, table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: self.marked(value) for key, value in table.items()}

    def _closed(self, node: dict[str, Any]) -> dict[str, Any]:
        """A schema of its own parts: strings, items that it does not speak of, and further properties."""
        kinds = node.get("type")
        kinds = [kinds] if isinstance(kinds, str) else kinds if isinstance(kinds, list) else []
        if "string" in kinds and not {"enum", "const"} & node.keys():
            if "pattern" in node:
                node["allOf"] = [*node.get("allOf", []), {"pattern": self._pattern}]
            else:
                node["pattern"] = self._pattern
        if "array" in kinds:
            node.setdefault("items", {"$ref": f"#/$defs/{_ANY}"})
        if "object" in kinds and node.get("additionalProperties") is not False:
            further = node.pop("additionalProperties", {"$ref": f"#/$defs/{_ANY}"})
            node["patternProperties"] = {**node.get("patternProperties", {}), self._pattern: further}
            node["additionalProperties"] = False
        return node

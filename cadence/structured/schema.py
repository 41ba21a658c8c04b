"""JSON schemas: what of them xgrammar is known to follow to the letter, and objects without further properties."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

# Repetitions with a bound ({2,50}, maxLength) are states of their own to xgrammar, each with a table of tokens: some
# 20 ms and 300 KB each with a vocabulary of 50,000, and the mask where a string begins takes milliseconds. Those of
# items (maxItems) share the tables of what is repeated.
MAX_REPETITIONS = 16
MAX_ITEMS = 64
_REPETITION = re.compile(r"\{(\d{1,9})?(?:,(\d{1,9})?)?\}")
_LENGTHS = ("minLength", "maxLength")
_COUNTS = ("minItems", "maxItems")

_SAID = frozenset({"title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly"})
_TABLES = frozenset({"$defs", "definitions", "$schema", "$id"})  # of the whole schema
_OF_TYPE = {  # what a schema of this type may say
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "string": frozenset(
        {"minLength", "maxLength", "format"}
    ),  # of a pattern it may forget what an optional part begins with
    "integer": frozenset({"minimum", "maximum"}),
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_LOCAL = re.compile(r"#/(\$defs|definitions)/[A-Za-z0-9_.\-]+")


def suits_xgrammar(schema: dict[str, Any]) -> bool:
    """Only what it is known to keep: of other keywords it reads past many without a word."""
    lengths, items = _repetitions_of(schema)
    if schema.get("$id") or lengths > MAX_REPETITIONS or items > MAX_ITEMS:
        return False
    nodes = [schema, *_values(schema, "$defs"), *_values(schema, "definitions")]
    body = {name: value for name, value in schema.items() if name not in _TABLES}
    nodes[0] = body
    return all(map(_is_plain, nodes))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """With `additionalProperties: false` in objects that name their properties and say nothing of others. Not where
    schemas are put together: one part cannot know what the others name."""
    return dict(_mapped(schema, _close))


def repetitions(pattern: str) -> int:
    """Of parts of a regular expression or a grammar, by their bounds."""
    return sum(max(int(low or 0), int(high or 0)) for low, high in _REPETITION.findall(pattern))


def _is_plain(node: Any) -> bool:
    if not isinstance(node, dict):
        return False
    said = {name: value for name, value in node.items() if name not in _SAID}
    if not said:
        return True
    if "$ref" in said:
        return len(said) == 1 and isinstance(said["$ref"], str) and _LOCAL.fullmatch(said["$ref"]) is not None
    if "anyOf" in said:
        return len(said) == 1 and isinstance(said["anyOf"], list) and all(map(_is_plain, said["anyOf"]))
    if "enum" in said or "const" in said:
        return said.keys() <= {"enum", "type"} or said.keys() <= {"const", "type"}
    kind = said.pop("type", None)
    if isinstance(kind, list):
        return not said and all(isinstance(one, str) for one in kind)
    return isinstance(kind, str) and said.keys() <= _OF_TYPE.get(kind, frozenset()) and _parts_are_plain(said)


def _parts_are_plain(said: dict[str, Any]) -> bool:
    properties = said.get("properties", {})
    required = said.get("required", [])
    further = said.get("additionalProperties", False)
    return (
        isinstance(properties, dict)
        and all(map(_is_plain, properties.values()))
        and _are_all_in(required, properties)
        and (further is False or (not properties and (further is True or _is_plain(further))))
        and _is_plain(said.get("items", {}))
        and all(type(said.get(name, 0)) is int for name in (*_LENGTHS, *_COUNTS, "minimum", "maximum"))
        and said.get("minItems", 0) <= said.get("maxItems", MAX_ITEMS)
        and said.get("minLength", 0) <= said.get("maxLength", MAX_REPETITIONS)
        and said.get("minimum", 0) <= said.get("maximum", said.get("minimum", 0))
    )


def _are_all_in(required: Any, properties: dict[str, Any]) -> bool:
    """False, too, where `required` is no list of names."""
    return isinstance(required, list) and all(isinstance(name, str) and name in properties for name in required)


def _values(schema: dict[str, Any], name: str) -> list[Any]:
    table = schema.get(name, {})
    return list(table.values()) if isinstance(table, dict) else [None]


def _repetitions_of(schema: Any) -> tuple[int, int]:
    """Of characters and of items; of all objects within, whatever they mean."""
    lengths, items, todo = 0, 0, [schema]
    while todo:
        item = todo.pop()
        if isinstance(item, dict):
            lengths += sum(item[name] for name in _LENGTHS if type(item.get(name)) is int)
            lengths += repetitions(item["pattern"]) if isinstance(item.get("pattern"), str) else 0
            items += sum(item[name] for name in _COUNTS if type(item.get(name)) is int)
            todo += item.values()
        elif isinstance(item, list):
            todo += item
    return lengths, items


_COMBINES = frozenset(
    {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "dependentSchemas"}
)
_OPEN = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames"})


def _close(node: dict[str, Any]) -> dict[str, Any]:
    names = node.get("properties")
    if not isinstance(names, dict) or node.get("type") != "object" or not _OPEN.isdisjoint(node):
        return node
    if not _COMBINES.isdisjoint(node) or not _are_all_in(node.get("required", []), names):
        return node
    return {**node, "additionalProperties": False}


def _mapped(node: Any, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Any:
    """Every schema that stands by itself: properties, items, alternatives and what references lead to."""
    if not isinstance(node, dict):
        return node
    inner = dict(node)
    for name in ("properties", "$defs", "definitions"):
        if isinstance(node.get(name), dict):
            inner[name] = {key: _mapped(value, change) for key, value in node[name].items()}
    if isinstance(node.get("items"), dict):
        inner["items"] = _mapped(node["items"], change)
    if isinstance(node.get("anyOf"), list) and not {"properties", "allOf", "oneOf"} & node.keys():
        inner["anyOf"] = [_mapped(option, change) for option in node["anyOf"]]
    return change(inner)


def closed_text(text: str) -> str:
    schema = json.loads(text)
    uses_all_of = '"allOf"' in text or '"$dynamicRef"' in text  # what references lead to may be a part of something
    return text if uses_all_of else json.dumps(closed(schema), ensure_ascii=False)

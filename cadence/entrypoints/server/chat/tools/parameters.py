"""The parameters of a function one by one, for formats that do not write its arguments as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.schema import Schemas

Schema = Mapping[str, Any]

# What says nothing of a value.
SAID = frozenset({"title", "description", "default", "examples", "example", "$comment", "deprecated", "readOnly"})
_TABLES = ("$defs", "definitions")
_OF_ROOT = SAID | {*_TABLES, "$schema", "$id", "type", "properties", "required", "additionalProperties", "strict"}
_MAX_REFERENCES = 8


class UnwritableError(Exception):
    """A schema that the format has no way to keep; says which keyword of it."""


@dataclass(frozen=True, slots=True)
class Parameter:
    name: str
    schema: Schema  # with the function's definitions
    required: bool
    types: frozenset[str]  # of JSON, as the parser reads them


def parameters_of(function: Mapping[str, Any]) -> list[Parameter]:
    """In the schema's order. Raises UnwritableError for what no list of parameters can keep."""
    schema = function.get("parameters") or {}
    properties, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(properties, Mapping) or not isinstance(required, list):
        raise UnwritableError("properties")
    if extra := set(schema) - _OF_ROOT:
        raise UnwritableError(min(extra))
    if missing := [name for name in required if name not in properties]:
        raise UnwritableError(f"required: {missing[0]}")
    types = Schemas([{"function": function}])
    return [
        Parameter(
            key, with_tables(value, schema, function["name"]), key in required, types.types(function["name"], key)
        )
        for key, value in properties.items()
    ]


def with_tables(schema: Any, root: Schema, title: str = "") -> Schema:
    """A schema within another, with what its references lead to. Its title says whose it is, should it be bad."""
    if not isinstance(schema, Mapping):
        raise UnwritableError(str(schema).lower())
    titled = {**schema, "title": title or root.get("title", "")}
    return {**titled, **{name: root[name] for name in _TABLES if name in root}}


def keywords(schema: Schema) -> dict[str, Any]:
    """What it says of the value."""
    return {name: value for name, value in schema.items() if name not in SAID and name not in _TABLES}


def resolved(schema: Schema) -> Schema:
    """What a schema that is no more than a reference leads to."""
    for _ in range(_MAX_REFERENCES):
        said = keywords(schema)
        reference = said.get("$ref")
        if not isinstance(reference, str) or len(said) > 1 or not reference.startswith("#/"):
            return schema
        found: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = with_tables(found, schema)
    raise UnwritableError("$ref")


def listed_values(schema: Schema) -> list[Any] | None:
    """Of `enum` or `const`; None = any."""
    said = keywords(schema)
    if "const" in said:
        return [said["const"]]
    return list(said["enum"]) if isinstance(said.get("enum"), list) else None

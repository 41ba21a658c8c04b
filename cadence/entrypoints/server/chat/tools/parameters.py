"""The parameters of a function one by one, for formats that do not write its arguments as one JSON object."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.parts import written_size
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget

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


def parameters_of(function: Mapping[str, Any], budget: SchemaBudget) -> list[Parameter]:
    """In the schema's order. Raises UnwritableError for what no list of parameters can keep."""
    schema = function.get("parameters") or {}
    properties, required = schema.get("properties", {}), required_names(schema)
    if not isinstance(properties, Mapping):
        raise UnwritableError("properties")
    if extra := set(schema) - _OF_ROOT:
        raise UnwritableError(min(extra))
    if missing := [name for name in required if name not in properties]:
        raise UnwritableError(f"required: {missing[0]}")
    types, required = Schemas([{"function": function}], budget), frozenset(required)
    name = function["name"]
    return [
        Parameter(key, with_tables(value, schema, budget, name), key in required, types.types(name, key))
        for key, value in properties.items()
    ]


def required_names(schema: Schema) -> list[str]:
    """In the schema's order, each once."""
    required = schema.get("required", [])
    if not isinstance(required, list) or not all(isinstance(name, str) for name in required):
        raise UnwritableError("required")
    return list(dict.fromkeys(required))


def with_tables(schema: Any, root: Schema, budget: SchemaBudget, title: str = "") -> Schema:
    """A schema within another, with what its references lead to. Its title says whose it is, should it be bad."""
    if not isinstance(schema, Mapping):
        raise UnwritableError(str(schema).lower())
    budget.spend(1 + len(schema))
    titled = {**schema, "title": title or root.get("title", "")}
    return {**titled, **{name: root[name] for name in _TABLES if name in root}}


def keywords(schema: Schema) -> dict[str, Any]:
    """What it says of the value."""
    return {name: value for name, value in schema.items() if name not in SAID and name not in _TABLES}


def resolved(schema: Schema, budget: SchemaBudget) -> Schema:
    """What a schema that is no more than a reference leads to."""
    for _ in range(_MAX_REFERENCES):
        said = keywords(schema)
        reference = said.get("$ref")
        if not isinstance(reference, str) or len(said) > 1 or not reference.startswith("#/"):
            return schema
        budget.spend(reference.count("/"))
        found: Any = schema
        for part in reference.removeprefix("#/").split("/"):
            found = found.get(part) if isinstance(found, Mapping) else None
        schema = with_tables(found, schema, budget)
    raise UnwritableError("$ref")


def listed_values(schema: Schema, budget: SchemaBudget) -> list[Any] | None:
    """Of `enum` or `const`; None = any."""
    said = keywords(schema)
    if "const" not in said and not isinstance(said.get("enum"), list):
        return None
    values = [said["const"]] if "const" in said else list(said["enum"])
    budget.spend(len(values) + written_size(values) // 8)  # they are read as the parser reads them
    return values

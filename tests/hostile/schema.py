"""What a server says it accepts: endpoints, their fields, and every place in a body where a value can stand."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Schema = Mapping[str, Any]

HOLE = "\x00hole\x00"  # stands for the hostile value in a skeleton
_HOLE_TEXT = json.dumps(HOLE)
_MAX_DEPTH = 4  # levels below a field


@dataclass(frozen=True)
class Slot:
    """A place for a value: inside the value of `field`, between the JSON texts `before` and `after`."""

    field: str
    path: str  # "stop[]", "stream_options.include_usage", "messages[0].content"
    schema: Schema
    before: bytes = b""
    after: bytes = b""

    def fill(self, value: bytes) -> bytes:
        """The JSON text of the whole field."""
        return self.before + value + self.after


@dataclass(frozen=True)
class Endpoint:
    method: str
    path: str
    fields: Mapping[str, Schema] = field(default_factory=dict)
    required: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


def endpoints(document: Mapping[str, Any]) -> list[Endpoint]:
    """Every operation of an OpenAPI document, references resolved."""
    found = []
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = operation.get("requestBody", {}).get("content", {})
            body = resolve(content.get("application/json", {}).get("schema", {}), document)
            fields = body.get("properties", {})
            found.append(Endpoint(method.upper(), path, fields, tuple(body.get("required", ()))))
    return found


def resolve(node: Any, document: Mapping[str, Any]) -> Any:
    """A schema without references."""
    if isinstance(node, dict):
        if "$ref" in node:
            target: Any = document
            for part in node["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            return resolve(target, document)
        return {key: resolve(value, document) for key, value in node.items()}
    return [resolve(item, document) for item in node] if isinstance(node, list) else node


def alternatives(schema: Schema) -> list[Schema]:
    """The members of a union; the schema itself where it is none."""
    return list(schema.get("anyOf", ())) or [schema]


def kinds(schema: Schema) -> frozenset[str]:
    """The JSON types a schema allows; all of them where it names none."""
    named = [one["type"] for one in alternatives(schema) if "type" in one]
    return frozenset(named or ("string", "integer", "number", "boolean", "array", "object", "null"))


def field_slots(name: str, schema: Schema) -> list[Slot]:
    """The field itself, and what its schema says lies inside: items, properties, values of a map."""
    return [_slot(name, path, inner, skeleton) for path, inner, skeleton in _inside(name, schema, HOLE, 0)]


def seed_slots(name: str, value: Any) -> list[Slot]:
    """Every place inside a valid value: what an open schema (messages, tools) does not describe."""
    return [_slot(name, path, {}, skeleton) for path, skeleton in _holes(name, value) if path != name]


def _inside(path: str, schema: Schema, skeleton: Any, depth: int) -> Iterator[tuple[str, Schema, Any]]:
    yield path, schema, skeleton
    if depth == _MAX_DEPTH:
        return
    for one in alternatives(schema):
        if isinstance(one.get("items"), dict):
            yield from _inside(f"{path}[]", one["items"], _put(skeleton, [HOLE]), depth + 1)
        for name, inner in one.get("properties", {}).items():
            yield from _inside(f"{path}.{name}", inner, _put(skeleton, {name: HOLE}), depth + 1)
        if isinstance(one.get("additionalProperties"), dict):
            yield from _inside(f"{path}{{}}", one["additionalProperties"], _put(skeleton, {"7": HOLE}), depth + 1)


def _put(skeleton: Any, inner: Any) -> Any:
    if skeleton == HOLE:
        return inner
    if isinstance(skeleton, dict):
        return {key: _put(value, inner) for key, value in skeleton.items()}
    return [_put(value, inner) for value in skeleton]


def _holes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    yield path, HOLE
    if isinstance(value, dict):
        for key, inner in value.items():
            for name, skeleton in _holes(f"{path}.{key}", inner):
                yield name, {**value, key: skeleton}
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            for name, skeleton in _holes(f"{path}[{number}]", inner):
                yield name, [*value[:number], skeleton, *value[number + 1 :]]


def _slot(name: str, path: str, schema: Schema, skeleton: Any) -> Slot:
    before, _, after = json.dumps(skeleton).partition(_HOLE_TEXT)
    return Slot(name, path, schema, before.encode(), after.encode())

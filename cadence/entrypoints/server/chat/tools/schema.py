"""What the text of a parameter means, by the JSON schema that the tool gives it."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from cadence.entrypoints.server.chat.tools.arguments import json_text
from cadence.entrypoints.server.chat.tools.base import Tools

MAX_DEPTH = 10
ORDER = ("null", "integer", "number", "boolean", "object", "array", "string")  # what is tried first
ALIASES = {
    **dict.fromkeys(("str", "text", "varchar", "char", "enum"), "string"),
    **dict.fromkeys(("int", "int32", "int64", "uint", "uint32", "uint64", "long", "short", "unsigned"), "integer"),
    **dict.fromkeys(("float", "float32", "float64", "double"), "number"),
    **dict.fromkeys(("dict", "map"), "object"),
    **dict.fromkeys(("arr", "list", "sequence"), "array"),
    "bool": "boolean",
}
STRING = frozenset({"string"})
_NAMES = (
    (type(None), "null"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (str, "string"),
    (list, "array"),
    (dict, "object"),
)


class Schemas:
    """The parameters of the tools of a request."""

    def __init__(self, tools: Tools) -> None:
        self._parameters: dict[str, Mapping[str, Any]] = {}
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, Mapping) and isinstance(parameters := function.get("parameters"), Mapping):
                self._parameters[str(function.get("name", ""))] = parameters

    def types(self, function: str, key: str) -> frozenset[str]:
        """The JSON types the parameter may have; none when the tool does not know it."""
        parameters = self._parameters.get(function, {})
        properties = parameters.get("properties")
        if not isinstance(properties, Mapping) or key not in properties:
            return frozenset()
        return frozenset(_types(properties[key], parameters, 0)) or STRING

    def properties(self, function: str) -> Mapping[str, Any]:
        properties = self._parameters.get(function, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}


def schema_types(schema: object) -> frozenset[str]:
    """The JSON types that a schema without references allows."""
    return frozenset(_types(schema, {}, 0))


def _types(schema: object, root: Mapping[str, Any], depth: int) -> set[str]:
    if not isinstance(schema, Mapping) or depth > MAX_DEPTH:
        return set()
    said = schema.get("type")
    types = {said} if isinstance(said, str) else {t for t in said if isinstance(t, str)} if _is_list(said) else set()
    found = {ALIASES.get(name.strip().lower(), name.strip().lower()) for name in types}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    for value in values if isinstance(values, list) else []:
        found.add(next(name for kind, name in _NAMES if isinstance(value, kind)))
    for key in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else []:
            found |= _types(choice, root, depth + 1)
    if isinstance(reference := schema.get("$ref"), str):
        found |= _types(_resolve(reference, root), root, depth + 1)
    return found


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _resolve(reference: str, root: Any) -> Any:
    """What `#/a/b` points to; None when it points nowhere."""
    for part in reference.removeprefix("#/").split("/"):
        root = root.get(part) if isinstance(root, Mapping) else None
    return root


def as_json(text: str, types: frozenset[str]) -> str:
    """The JSON of a parameter written as `text`: the first of its types that the text can be, else the text itself."""
    if types == STRING:
        return json_text(text)
    word = text.strip()
    for name in ORDER:
        if name == "string" and name in types:
            return json_text(text)
        if name in types and (written := _written(word, READERS[name])):
            return written
    return _written(word, literal if types else _value) or json_text(text)


def literal(text: str) -> Any:
    """A JSON value, or a Python literal. ValueError when it is neither."""
    try:
        return _value(text)
    except ValueError:
        pass
    try:
        return ast.literal_eval(text)
    except (SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise ValueError(str(error)) from None


def _written(word: str, read: Callable[[str], Any]) -> str:
    try:
        return json_text(read(word))
    except (ValueError, TypeError, RecursionError, OverflowError):
        return ""


def _value(word: str) -> Any:
    return json.loads(word)


def _null(word: str) -> None:
    if word.lower() != "null":
        raise ValueError(word)


def _integer(word: str) -> int:
    return int(word)


def _number(word: str) -> int | float:
    number = float(word)
    if not math.isfinite(number):
        raise ValueError(word)
    return int(number) if number.is_integer() and abs(number) < 2**53 else number


def _boolean(word: str) -> bool:
    if word.lower() in ("true", "1"):
        return True
    if word.lower() in ("false", "0"):
        return False
    raise ValueError(word)


def _object(word: str) -> Any:
    return _container(word, dict)


def _array(word: str) -> Any:
    return _container(word, list)


def _container(word: str, kind: type) -> Any:
    value = literal(word)
    if not isinstance(value, kind | tuple if kind is list else kind):
        raise ValueError(word)
    return value


READERS: Mapping[str, Callable[[str], Any]] = {
    "null": _null,
    "integer": _integer,
    "number": _number,
    "boolean": _boolean,
    "object": _object,
    "array": _array,
}

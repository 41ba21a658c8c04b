"""What the text of a parameter means, by the JSON schema that the tool gives it."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Callable, Mapping
from typing import Any

from cadence.entrypoints.server.chat.tools.arguments import json_text
from cadence.entrypoints.server.chat.tools.base import Tools
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget

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
    """The parameters of the tools of a request. All types are worked out here, so that who reads an answer walks over
    no schema."""

    def __init__(self, tools: Tools, budget: SchemaBudget | None = None) -> None:
        budget = budget or SchemaBudget()
        self._parameters: dict[str, Mapping[str, Any]] = {}
        self._types: dict[tuple[str, str], frozenset[str]] = {}
        self._inner: dict[int, tuple[object, frozenset[str]]] = {}  # by the id of the schema, which is kept for that
        for tool in tools:
            function = tool.get("function")
            if isinstance(function, Mapping) and isinstance(parameters := function.get("parameters"), Mapping):
                self._parameters[str(function.get("name", ""))] = parameters
        for name, parameters in self._parameters.items():
            for key, schema in self.properties(name).items():
                self._types[name, key] = schema_types(schema, parameters, budget) or STRING

    def types(self, function: str, key: str) -> frozenset[str]:
        """The JSON types the parameter may have; none when the tool does not know it."""
        return self._types.get((function, key), frozenset())

    def inner_types(self, schema: object) -> frozenset[str]:
        """The JSON types that a schema within a parameter allows, references aside. Worked out once for each."""
        known = self._inner.get(id(schema))
        if known is None:
            known = self._inner[id(schema)] = (schema, schema_types(schema, {}, SchemaBudget(sys.maxsize)))
        return known[1]

    def properties(self, function: str) -> Mapping[str, Any]:
        properties = self._parameters.get(function, {}).get("properties")
        return properties if isinstance(properties, Mapping) else {}


def schema_types(schema: object, root: Mapping[str, Any], budget: SchemaBudget) -> frozenset[str]:
    """The JSON types that a schema within `root` allows. Each node is looked at once, however often it is named."""
    found: set[str] = set()
    seen: set[int] = set()
    todo = [schema]
    while todo:
        node = todo.pop()
        if isinstance(node, Mapping) and id(node) not in seen:
            seen.add(id(node))
            budget.spend(_width(node))
            found |= _own_types(node)
            todo += _choices(node, root)
    return frozenset(found)


def _own_types(schema: Mapping[str, Any]) -> set[str]:
    said = schema.get("type")
    types = {said} if isinstance(said, str) else {t for t in said if isinstance(t, str)} if _is_list(said) else set()
    found = {ALIASES.get(name.strip().lower(), name.strip().lower()) for name in types}
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    for value in values if isinstance(values, list) else []:
        found.add(next(name for kind, name in _NAMES if isinstance(value, kind)))
    return found


def _width(schema: Mapping[str, Any]) -> int:
    """What is looked at to tell the types of one node: itself, the parts of a reference, what its lists hold, and the
    names of types."""
    lists = [schema.get(key) for key in ("type", "enum", "anyOf", "oneOf", "allOf")]
    reference, said = schema.get("$ref"), schema.get("type")
    parts = reference.count("/") if isinstance(reference, str) else 0
    names = [name for name in (said if isinstance(said, list) else [said]) if isinstance(name, str)]
    written = sum(map(len, names)) // 8
    return 1 + parts + written + sum(len(entries) for entries in lists if isinstance(entries, list))


def _choices(schema: Mapping[str, Any], root: Mapping[str, Any]) -> list[Any]:
    """The schemas that a value of it may have the types of."""
    lists = [schema.get(key) for key in ("anyOf", "oneOf", "allOf")]
    found = [choice for choices in lists if isinstance(choices, list) for choice in choices]
    reference = schema.get("$ref")
    return [*found, _resolve(reference, root)] if isinstance(reference, str) else found


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
    except (ValueError, RecursionError, OverflowError):
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

"""Arguments as literals: of Python, and of Gemma."""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.argument_forms import Function
from cadence.entrypoints.server.chat.tools.parameters import (
    Schema,
    UnwritableError,
    keywords,
    listed_values,
    parameters_of,
    required_names,
    resolved,
    with_tables,
)
from cadence.entrypoints.server.chat.tools.parts import (
    NUMBER,
    Part,
    const,
    either,
    joined,
    json_value,
    optional,
    sequence,
)
from cadence.entrypoints.server.chat.tools.schema import STRING
from cadence.entrypoints.server.chat.tools.schema_budget import SchemaBudget
from cadence.entrypoints.server.chat.tools.text_values import TextValues

MAX_DEPTH = 4  # of what is written out: each level may stand in a grammar several times
MAX_ITEMS = 16  # of an array with a bound
_OF_ARRAY = {"type", "items", "minItems", "maxItems"}
_OF_OBJECT = {"type", "properties", "required", "additionalProperties"}


@dataclass(frozen=True, slots=True)
class LiteralWords:
    """How a language writes its values."""

    true: str
    false: str
    null: str
    between: str  # items and members
    member: Callable[[str], str]  # what stands before a member's value, by its key
    string: Callable[[Schema, SchemaBudget], Part]
    text: Callable[[str], str]  # a string that is known
    other: Callable[[Schema], Part]  # a value that is not written out


class LiteralWriter:
    """From a schema to the literals that it allows."""

    def __init__(self, words: LiteralWords, budget: SchemaBudget) -> None:
        self._words = words
        self._budget = budget

    def value(self, schema: Schema, depth: int = 0) -> Part:
        schema = resolved(schema, self._budget)
        said = keywords(schema)
        if (values := listed_values(schema, self._budget)) is not None:
            return either([const(self._written(value)) for value in values])
        if depth >= MAX_DEPTH:
            return self._words.other(schema)
        if isinstance(said.get("anyOf"), list) and len(said) == 1:
            return either([self.value(self._within(option, schema), depth + 1) for option in said["anyOf"]])
        if isinstance(said.get("type"), list) and len(said) == 1:
            kinds = [self._within({**said, "type": kind}, schema) for kind in said["type"]]
            return either([self.value(kind, depth) for kind in kinds])
        match said.get("type"):
            case "string":
                return self._words.string(schema, self._budget)
            case "boolean" if len(said) == 1:
                return either([const(self._words.true), const(self._words.false)])
            case "number" if len(said) == 1:
                return NUMBER
            case "null":
                return const(self._words.null)
            case "array" if said.keys() <= _OF_ARRAY and isinstance(said.get("items"), Mapping) and _is_bounded(said):
                item = self.value(self._within(said["items"], schema), depth + 1)
                return self._array(item, said.get("minItems", 0), said.get("maxItems"))
            case "object" if said.keys() <= _OF_OBJECT and said.get("properties"):
                return self._object(schema, depth)
            case _:
                return self._words.other(schema)

    def _within(self, inner: Any, schema: Schema) -> Schema:
        return with_tables(inner, schema, self._budget)

    def _array(self, item: Part, least: int, most: int | None) -> Part:
        """Each item after the first follows a separator."""
        if most == 0:
            return const("[]")
        more = sequence([const(self._words.between), item])
        fixed = [more] * (least - 1)
        rest: Part = {"type": "star", "content": more} if most is None else const("")
        for _ in range(max(least, 1), most or 0):
            rest = optional(sequence([more, rest]))
        items = sequence([item, *fixed, rest])
        return sequence([const("["), items if least else optional(items), const("]")])

    def _object(self, schema: Schema, depth: int) -> Part:
        properties, required = schema["properties"], frozenset(required_names(schema))
        if not isinstance(properties, Mapping) or not required <= set(properties):
            return self._words.other(schema)
        members = [
            (sequence([const(self._words.member(key)), self.value(self._within(inner, schema), depth + 1)]),
             key in required)
            for key, inner in properties.items()
        ]  # fmt: skip
        return sequence([const("{"), joined(members, self._words.between), const("}")])

    def _written(self, value: Any) -> str:
        words = self._words
        if isinstance(value, str):
            return words.text(value)
        if isinstance(value, list):
            return "[" + words.between.join(map(self._written, value)) + "]"
        if isinstance(value, Mapping):
            return (
                "{" + words.between.join(words.member(key) + self._written(inner) for key, inner in value.items()) + "}"
            )
        return {True: words.true, False: words.false, None: words.null}[value] if _is_name(value) else json.dumps(value)


def _is_bounded(said: Mapping[str, Any]) -> bool:
    """By few items, as they are written out, or not."""
    least, most = said.get("minItems", 0), said.get("maxItems", 0)
    return type(least) is int and type(most) is int and 0 <= least <= MAX_ITEMS and 0 <= most <= MAX_ITEMS


def _is_name(value: Any) -> bool:
    return value is None or isinstance(value, bool)


@dataclass(frozen=True, slots=True)
class PythonArguments:
    """key=value, key=value. Strings are JSON's, but for an escape that Python reads otherwise, and have none of
    `marks` within. What is not written out is JSON: its names are read, too."""

    marks: Sequence[str] = ()

    def arguments(self, function: Function, budget: SchemaBudget) -> Part:
        _check_name(function["name"])
        words = LiteralWords("True", "False", "None", ", ", self._member, self._string, self._text, self._json)
        writer = LiteralWriter(words, budget)
        members = []
        for parameter in parameters_of(function, budget):
            _check_name(parameter.name)
            value = writer.value(parameter.schema)
            members.append((sequence([const(f"{parameter.name}="), value]), parameter.required))
        return joined(members, ", ")

    def any_arguments(self) -> Part:
        """Named ones, of any kind."""
        value = json_value({}, self._excludes, space=1)
        member = sequence([{"type": "regex", "pattern": r"[A-Za-z_][A-Za-z0-9_]*="}, value])
        more = {"type": "star", "content": sequence([const(", "), member])}
        return optional(sequence([member, more]))

    @property
    def _excludes(self) -> list[str]:
        return ["\\/", *self.marks]

    def _member(self, key: str) -> str:
        return f"{self._text(key)}: "

    def _text(self, text: str) -> str:
        if any(mark in text for mark in self.marks):
            raise UnwritableError("enum")
        return json.dumps(text)

    def _string(self, schema: Schema, budget: SchemaBudget) -> Part:
        return self._json(schema)

    def _json(self, schema: Schema) -> Part:
        return json_value(dict(schema), self._excludes, space=1)


def _check_name(name: str) -> None:
    if any(not part.isidentifier() or keyword.iskeyword(part) for part in re.split(r"[.-]", name)):
        raise UnwritableError(f"properties: {name}")


@dataclass(frozen=True, slots=True)
class GemmaArguments:
    """key:value,key:value, with strings between `quote`s. What is not written out cannot be kept."""

    quote: str

    def arguments(self, function: Function, budget: SchemaBudget) -> Part:
        words = LiteralWords("true", "false", "null", ",", self._member, self._string, self._text, self._other)
        writer = LiteralWriter(words, budget)
        parameters = parameters_of(function, budget)
        members = [
            (sequence([const(self._member(one.name)), writer.value(one.schema)]), one.required) for one in parameters
        ]
        return joined(members, ",")

    def any_arguments(self) -> Part:
        return {"type": "any_text"}

    def _member(self, key: str) -> str:
        if not re.fullmatch(r"[^:,{}\[\]\s<]+", key):
            raise UnwritableError(f"properties: {key}")
        return f"{key}:"

    def _string(self, schema: Schema, budget: SchemaBudget) -> Part:
        return sequence([const(self.quote), TextValues(self.quote).text(keywords(schema), STRING, budget)])

    def _text(self, text: str) -> str:
        if self.quote in text:
            raise UnwritableError("enum")
        return f"{self.quote}{text}{self.quote}"

    def _other(self, schema: Schema) -> Part:
        """Numbers; no text with strings in it, which it quotes otherwise."""
        said = keywords(schema)
        if said.get("type") not in ("integer", "number"):
            raise UnwritableError(next((name for name in said if name != "type"), str(said.get("type", "{}"))))
        return json_value(dict(schema), space=1)

"""Argument languages of their own: Gemma's key:value lists, and MiniMax M3's elements in elements."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from cadence.entrypoints.server.chat.tools.schema import STRING, Schemas, as_json

MAX_DEPTH = 50
_KEY = re.compile(r"([^:,{}\[\]]+):")
_BARE = re.compile(r"[^,{}\[\]]*")
_ELEMENT = re.compile(r"<([^<>/\s]+)>")


def gemma4(text: str, schemas: Schemas, name: str) -> dict[str, Any]:
    """key:<|"|>text<|"|>,key:[1,2],key:{inner:true}: what is not quoted has the type that the tool gives it."""
    return _keyed(text, KeyedText('<|"|>'), schemas, name)


def functiongemma(text: str, schemas: Schemas, name: str) -> dict[str, Any]:
    """key:<escape>value<escape>: every value is quoted."""
    return _keyed(text, KeyedText("<escape>", quoted=False), schemas, name)


def _keyed(text: str, reader: KeyedText, schemas: Schemas, name: str) -> dict[str, Any]:
    entries, end = reader.mapping(text + "}", 0, 0)
    if end != len(text) + 1:
        raise ValueError(text)
    return {key: _typed(value, schemas.types(name, key)) for key, value in entries.items()}


class Word(str):
    """A value that was not quoted, or whose quotes say nothing about its type."""


def _typed(value: Any, types: frozenset[str]) -> Any:
    if isinstance(value, Word):
        return json.loads(as_json(value, types))
    if isinstance(value, dict):
        return {key: _typed(item, frozenset()) for key, item in value.items()}
    return [_typed(item, frozenset()) for item in value] if isinstance(value, list) else value


class KeyedText:
    def __init__(self, quote: str, quoted: bool = True) -> None:
        self._quote = quote
        self._quoted_type = str if quoted else Word

    def mapping(self, text: str, at: int, depth: int) -> tuple[dict[str, Any], int]:
        """The entries up to the closing brace, and what is after it. ValueError when this is none."""
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        entries: dict[str, Any] = {}
        while True:
            at = _after_space(text, at)
            if text.startswith("}", at):
                return entries, at + 1
            key, at = self._key(text, at)
            entries[key], at = self._value(text, at, depth)

    def _key(self, text: str, at: int) -> tuple[str, int]:
        if text.startswith(self._quote, at):
            key, at = self._quoted(text, at)
            at = _after_space(text, at)
            if not text.startswith(":", at):
                raise ValueError(text)
            return key, at + 1
        match = _KEY.match(text, at)
        if match is None or not (key := match[1].strip()):
            raise ValueError(text)
        return key, match.end()

    def _value(self, text: str, at: int, depth: int) -> tuple[Any, int]:
        at = _after_space(text, at)
        if text.startswith(self._quote, at):
            value, at = self._quoted(text, at)
            return self._quoted_type(value), at
        if text.startswith("{", at):
            return self.mapping(text, at + 1, depth + 1)
        if text.startswith("[", at):
            return self._items(text, at + 1, depth + 1)
        bare = _BARE.match(text, at)
        if bare is None:
            raise ValueError(text)
        return Word(bare.group().strip()), bare.end()

    def _items(self, text: str, at: int, depth: int) -> tuple[list[Any], int]:
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        items = []
        while True:
            at = _after_space(text, at)
            if text.startswith("]", at):
                return items, at + 1
            start = at
            item, at = self._value(text, at, depth)
            if at == start:
                raise ValueError(text)
            items.append(item)

    def _quoted(self, text: str, at: int) -> tuple[str, int]:
        start = at + len(self._quote)
        end = text.find(self._quote, start)
        if end < 0:
            raise ValueError(text)
        return text[start:end], end + len(self._quote)


def _after_space(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\n", "\t", "\r", ","):
        at += 1
    return at


MARK = "]<]minimax[>["


def minimax_m3(text: str, schemas: Schemas, name: str) -> dict[str, Any]:
    """<key>value</key> and <key><inner>…</inner></key>, each tag after the marker."""
    types = {key: sorted(schemas.types(name, key)) for key in schemas.properties(name)}
    properties = {
        key: {"type": types[key]} if isinstance(schema, Mapping) and "$ref" in schema else schema
        for key, schema in schemas.properties(name).items()
    }
    value, end = ElementText(text, schemas).element(0, {"properties": properties, "type": "object"}, 0)
    if text[end:].strip():
        raise ValueError(text)
    return value if isinstance(value, dict) else {}


class ElementText:
    def __init__(self, text: str, schemas: Schemas) -> None:
        self._text = text
        self._types = schemas.inner_types

    def element(self, at: int, schema: Any, depth: int) -> tuple[Any, int]:
        """What stands up to the next closing tag that is not its own: children, or a text typed by the schema."""
        if depth > MAX_DEPTH:
            raise ValueError("too deep")
        children: list[tuple[str, Any]] = []
        text, start = self._text, at
        while True:
            mark = text.find(MARK, at)
            match = _ELEMENT.match(text, mark + len(MARK)) if mark >= 0 else None
            if match is None:
                end = mark if mark >= 0 else len(text)
                break
            value, end = self.element(match.end(), self._child(schema, match[1]), depth + 1)
            closing = f"{MARK}</{match[1]}>"
            if not text.startswith(closing, end):
                raise ValueError(text)
            children.append((match[1], value))
            at = end + len(closing)
        if children or depth == 0:
            return self._gathered(children, schema), end
        return json.loads(as_json(text[start:end], self._types(schema) or STRING)), end

    def _child(self, schema: Any, name: str) -> Any:
        if not isinstance(schema, Mapping):
            return None
        if "array" in self._types(schema):
            return schema.get("items")
        properties = schema.get("properties")
        if isinstance(properties, Mapping) and name in properties:
            return properties[name]
        return schema.get("additionalProperties")

    def _gathered(self, children: list[tuple[str, Any]], schema: Any) -> Any:
        """An array's items, or an object; names that come twice hold lists."""
        if "array" in self._types(schema):
            return [value for _, value in children]
        entries: dict[str, Any] = {}
        counts: dict[str, int] = {}
        for name, value in children:
            counts[name] = counts.get(name, 0) + 1
            if counts[name] == 1:
                entries[name] = value
            elif counts[name] == 2:
                entries[name] = [entries[name], value]
            else:
                entries[name].append(value)
        return entries

"""JSON schemas that people write: those of well-known configuration files, in the wheel of `check-jsonschema`."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.helpers.pip_archives import kept_from

PACKAGE = "check-jsonschema==0.39.0"
MAX_CHARS = 60_000  # of one schema; only few are larger
_INSIDE = "/builtin_schemas/"
_TABLES = ("definitions", "$defs")


@cache
def real_schemas() -> list[tuple[str, dict[str, Any]]]:
    """(name, schema), no two alike: of each file, and of each definition in it with those that it leads to."""
    named = [part for name, schema in kept_from(PACKAGE, _files_in) for part in _parts(name, schema)]
    texts = [json.dumps(schema, sort_keys=True) for _, schema in named]
    distinct = {text: part for text, part in zip(texts, named, strict=True) if len(text) <= MAX_CHARS}
    return list(distinct.values())


def _files_in(path: Path) -> list[tuple[str, dict[str, Any]]]:
    with zipfile.ZipFile(path) as wheel:
        names = sorted(name for name in wheel.namelist() if _INSIDE in name and name.endswith(".json"))
        return [(Path(name).stem, json.loads(wheel.read(name))) for name in names]


def _parts(name: str, schema: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    yield name, schema
    dialect = {"$schema": schema["$schema"]} if "$schema" in schema else {}
    for place in _TABLES:
        table = schema.get(place, {})
        for key, part in table.items():
            needed = _needed(part, table, f"#/{place}/")
            if isinstance(part, dict) and needed is not None:
                yield f"{name}: {key}", {**dialect, **part, **({place: needed} if needed else {})}


def _needed(part: Any, table: Mapping[str, Any], prefix: str) -> dict[str, Any] | None:
    """What of the table a part leads to; None where it leads elsewhere."""
    needed, todo = dict[str, Any](), [part]
    while todo:
        for target in _references(todo.pop()):
            key = target.removeprefix(prefix).partition("/")[0]
            if not target.startswith(prefix) or key not in table:
                return None
            if key not in needed:
                needed[key] = table[key]
                todo.append(table[key])
    return needed


def _references(node: Any) -> Iterator[str]:
    if isinstance(node, dict) and isinstance(node.get("$ref"), str):
        yield node["$ref"]
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    for value in inner:
        yield from _references(value)

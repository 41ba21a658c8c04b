"""JSON files that come with a model. They are untrusted input: read whole or not at all, in bounded time and memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cadence.core.errors import CadenceError
from cadence.core.shown import cut

MOST_CONFIG_BYTES = 4 << 20  # config.json and its like take kilobytes
MOST_TABLE_BYTES = 16 << 20  # vocabularies and indices of shards, megabytes
_MOST_BRACKETS = 1 << 17  # each may be a list or an object, which take fifty times their characters
_MOST_DEPTH = 100  # lists and objects within one another; Python's own bound differs from version to version


def read_object(path: Path, most_bytes: int, error: Callable[[str], CadenceError]) -> dict[str, Any]:
    """The object a file holds, or `error` with one sentence that begins with the path."""
    content = _read(path, most_bytes, error)
    if not isinstance(content, dict):
        raise error(f"{path}: expected a JSON object, found {type(content).__name__}")
    return content


def read_list(path: Path, most_bytes: int, error: Callable[[str], CadenceError]) -> list[Any]:
    """The same of a list."""
    content = _read(path, most_bytes, error)
    if not isinstance(content, list):
        raise error(f"{path}: expected a JSON list, found {type(content).__name__}")
    return content


def _read(path: Path, most_bytes: int, error: Callable[[str], CadenceError]) -> Any:
    raw = read_bytes(path, most_bytes, error)
    if raw.count(b"[") + raw.count(b"{") > _MOST_BRACKETS:
        raise error(f"{path}: not readable as JSON: more than {_MOST_BRACKETS} lists and objects")
    try:
        content = json.loads(raw)
    except RecursionError:
        raise error(f"{path}: not readable as JSON: nested too deeply") from None
    except ValueError as wrong:  # UnicodeDecodeError is one
        raise error(f"{path}: not readable as JSON: {cut(str(wrong))}") from None
    if _is_deep(content):
        raise error(f"{path}: not readable as JSON: nested too deeply")
    return content


def _is_deep(content: Any) -> bool:
    """Whether lists and objects lie within one another more than _MOST_DEPTH levels deep."""
    level: list[Any] = [content] if isinstance(content, dict | list) else []
    for _ in range(_MOST_DEPTH):
        inner = (each for outer in level for each in (outer.values() if isinstance(outer, dict) else outer))
        level = [each for each in inner if isinstance(each, dict | list)]
        if not level:
            return False
    return True


def read_bytes(path: Path, most_bytes: int, error: Callable[[str], CadenceError]) -> bytes:
    """Never of a pipe or a device, which could go on for ever."""
    try:
        if not path.exists():
            raise error(f"{path}: no such file")
        if not path.is_file():
            raise error(f"{path}: not a file")
        with open(path, "rb") as file:
            content = file.read(most_bytes + 1)
    except OSError as wrong:
        raise error(f"{path}: cannot be read: {wrong.strerror or wrong}") from None
    if len(content) > most_bytes:
        raise error(f"{path}: larger than {most_bytes >> 20} MiB, which no such file is")
    return content

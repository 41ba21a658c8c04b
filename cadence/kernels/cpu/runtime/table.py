"""The words of every command and the numbers in them, read from commands.h, which C is compiled with.

A word is 64 bits wide. A command's words are passed by name, and go down in the order of the header.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cadence.core.errors import CadenceError

_HEADER = Path(__file__).with_name("commands.h")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_STRUCT = re.compile(r"(typedef )?struct (\w+ )?\{([^}]*)\}( \w+)?;")
_ENUM = re.compile(r"enum (\w+) \{([^}]*)\};")
_WORDS = re.compile(r"#define COMMAND_WORDS (\d+)")
_FIELD = re.compile(r"(?:const )?(\w+) (.+)")


class TableError(CadenceError):
    """commands.h and Python do not agree."""


@dataclass(frozen=True, slots=True)
class Table:
    words: int  # of one command, at most
    commands: Mapping[str, tuple[str, ...]]  # name -> names of its words, in order
    structs: Mapping[str, tuple[tuple[str, type], ...]]  # name of a command or a part of one -> fields, for ctypes
    enums: Mapping[str, Mapping[str, int]]

    def check(self, enum: str, numbers: Mapping[str, int]) -> None:
        """That Python's numbers are those of an enum, all of them."""
        if self.enums.get(enum) != dict(numbers):
            raise TableError(f"{_HEADER.name}: enum {enum} is {self.enums.get(enum)}, Python has {dict(numbers)}")


def read_table(text: str) -> Table:
    """Refuses what is not a table of words."""
    plain = _COMMENT.sub("", text)
    limit = _WORDS.search(plain)
    if limit is None:
        raise TableError(f"{_HEADER.name}: COMMAND_WORDS is missing")
    structs: dict[str, tuple[tuple[str, type], ...]] = {}
    commands: dict[str, tuple[str, ...]] = {}
    for typedef, tag, body, alias in _STRUCT.findall(plain):
        name = (alias if typedef else tag).strip()
        if not name or name in structs:
            raise TableError(f"{_HEADER.name}: struct {name!r} has no name, or that of another")
        structs[name] = _fields(name, body, structs)
        if not typedef:
            commands[name] = tuple(field for field, _ in structs[name])
    if too_long := [name for name, words in commands.items() if len(words) > int(limit[1])]:
        raise TableError(f"{_HEADER.name}: more than {limit[1]} words: {', '.join(too_long)}")
    enums = {name: _numbers(body) for name, body in _ENUM.findall(plain)}
    return Table(int(limit[1]), commands, structs, enums)


def _fields(struct: str, body: str, known: Mapping[str, tuple[tuple[str, type], ...]]) -> tuple[tuple[str, type], ...]:
    fields: list[tuple[str, type]] = []
    for line in body.split(";")[:-1]:
        found = _FIELD.fullmatch(" ".join(line.split()))
        if found is None:
            raise TableError(f"{_HEADER.name}: struct {struct}: {line.strip()!r} is no field")
        for name in found[2].split(", "):
            fields += _words_of(struct, found[1], name, known)
    names = [name for name, _ in fields]
    if not names or len(set(names)) < len(names):
        raise TableError(f"{_HEADER.name}: struct {struct} has no field, or one twice: {', '.join(names)}")
    return tuple(fields)


def _words_of(
    struct: str, kind: str, name: str, known: Mapping[str, tuple[tuple[str, type], ...]]
) -> tuple[tuple[str, type], ...]:
    """What a field stands for."""
    if re.fullmatch(r"\*\w+", name):
        return ((name[1:], ctypes.c_void_p),)
    if kind in known and name.isidentifier():
        return known[kind]
    if kind not in ("int64_t", "Float") or not name.isidentifier():
        raise TableError(f"{_HEADER.name}: struct {struct}: {kind} {name} is not one word")
    return ((name, ctypes.c_int64),)


def _numbers(body: str) -> dict[str, int]:
    names = [name.strip() for name in body.split(",")]
    if not all(name.isidentifier() for name in names):
        raise TableError(f"{_HEADER.name}: names of an enum are counted from 0, without numbers: {names}")
    return {name: number for number, name in enumerate(names)}


TABLE = read_table(_HEADER.read_text(encoding="utf-8"))

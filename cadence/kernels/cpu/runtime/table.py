"""The words of every command and the numbers in them, read from commands.h, which C is compiled with.

A word is 64 bits wide. A command's words are passed by name, and go down in the order of the header.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
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


class WordKind(Enum):
    """What Python passes for a word."""

    TENSOR = "tensor"  # its address goes down; of one without elements that is NULL
    ADDRESS = "address"  # of memory that is no tensor's
    NUMBER = "number"
    FLOAT = "float"
    DTYPE = "dtype"
    CACHE_DTYPE = "cache_dtype"


@dataclass(frozen=True, slots=True)
class CommandWord:
    name: str
    kind: WordKind


Words = tuple[CommandWord, ...]
_POINTERS = (WordKind.TENSOR, WordKind.ADDRESS)
_AREA = "Area"  # the type of memory of several processes


@dataclass(frozen=True, slots=True)
class Table:
    words: int  # of one command, at most
    commands: Mapping[str, Words]  # by name, in order
    structs: Mapping[str, Words]  # the same of commands and of parts of them
    enums: Mapping[str, Mapping[str, int]]

    def fields(self, struct: str) -> list[tuple[str, type]]:
        """Of a command, or a part of one, for ctypes."""
        return [
            (word.name, ctypes.c_void_p if word.kind in _POINTERS else ctypes.c_int64) for word in self.structs[struct]
        ]

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
    structs: dict[str, Words] = {}
    commands: dict[str, Words] = {}
    for typedef, tag, body, alias in _STRUCT.findall(plain):
        name = (alias if typedef else tag).strip()
        if not name or name in structs:
            raise TableError(f"{_HEADER.name}: struct {name!r} has no name, or that of another")
        structs[name] = _fields(name, body, structs)
        if not typedef:
            commands[name] = structs[name]
    if too_long := [name for name, words in commands.items() if len(words) > int(limit[1])]:
        raise TableError(f"{_HEADER.name}: more than {limit[1]} words: {', '.join(too_long)}")
    enums = {name: _numbers(body) for name, body in _ENUM.findall(plain)}
    return Table(int(limit[1]), commands, structs, enums)


def _fields(struct: str, body: str, known: Mapping[str, Words]) -> Words:
    fields: list[CommandWord] = []
    for line in body.split(";")[:-1]:
        found = _FIELD.fullmatch(" ".join(line.split()))
        if found is None:
            raise TableError(f"{_HEADER.name}: struct {struct}: {line.strip()!r} is no field")
        for name in found[2].split(", "):
            fields += _words_of(struct, found[1], name, known)
    names = [word.name for word in fields]
    if not names or len(set(names)) < len(names):
        raise TableError(f"{_HEADER.name}: struct {struct} has no field, or one twice: {', '.join(names)}")
    return tuple(fields)


def _words_of(struct: str, kind: str, name: str, known: Mapping[str, Words]) -> Words:
    """What a field stands for."""
    if re.fullmatch(r"\*\w+", name):
        return (CommandWord(name[1:], WordKind.ADDRESS if kind in known or kind == _AREA else WordKind.TENSOR),)
    if kind in known and name.isidentifier():
        return known[kind]
    if kind not in ("int64_t", "Float") or not name.isidentifier():
        raise TableError(f"{_HEADER.name}: struct {struct}: {kind} {name} is not one word")
    if kind == "Float":
        return (CommandWord(name, WordKind.FLOAT),)
    if name == "cache_dtype":
        return (CommandWord(name, WordKind.CACHE_DTYPE),)
    return (CommandWord(name, WordKind.DTYPE if name == "dtype" or name.endswith("_dtype") else WordKind.NUMBER),)


def _numbers(body: str) -> dict[str, int]:
    names = [name.strip() for name in body.split(",")]
    if not all(name.isidentifier() for name in names):
        raise TableError(f"{_HEADER.name}: names of an enum are counted from 0, without numbers: {names}")
    return {name: number for number, name in enumerate(names)}


TABLE = read_table(_HEADER.read_text(encoding="utf-8"))

"""[f(a=1), g(b="x")]: a list of Python calls, as Llama 3.2 writes it. A list comes whole or not at all."""

from __future__ import annotations

import ast
import re
from typing import Any

from cadence.entrypoints.openai.tools.arguments import json_text
from cadence.entrypoints.openai.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.openai.tools.machine import Machine

MAX_DEPTH = 50
_HEAD = re.compile(r"\[\s*(?P<name>[^\W\d][\w.]*\s*)?")
_QUIET = re.compile(r"[^\"'()\[\]{}]+")  # a run outside strings
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "\"'"}
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_JSON_NAMES = {"true": True, "false": False, "null": None}


class PythonicParser(Machine):
    def __init__(self) -> None:
        super().__init__(self._outside)
        self._at = 0  # how far the list has been looked at
        self._open: list[str] = []  # the brackets that are to close
        self._quote = ""

    def _outside(self) -> bool:
        at, tag = self.find("[")
        self.say(self.skip(at))
        if not tag:
            return False
        head = _HEAD.match(self.rest)
        end = head.end() if head else 0
        if end == len(self.rest) and not self.final:
            return False
        if head and head["name"] and self.rest.startswith("(", end):
            self._at, self._open, self._quote = 0, [], ""
            self.state = self._list
        else:
            self.say(self.skip(1))
        return True

    def _list(self) -> bool:
        while self._at < len(self.rest):
            if not self._look():
                self._end(())
                return True
            if not self._open:
                self._end(_parse(self.rest[: self._at], self.calls))
                return True
        if self.final:
            self._end(())
        return self.final and bool(self.rest)

    def _look(self) -> bool:
        """One run, bracket or quote further; False where the brackets do not fit."""
        char = self.rest[self._at]
        if run := (_IN_STRING[self._quote] if self._quote else _QUIET).match(self.rest, self._at):
            self._at = run.end()
        elif self._quote and char == "\\":
            self._at += 2
        elif char in "\"'":
            self._quote = "" if self._quote else char
            self._at += 1
        elif char in _CLOSES and len(self._open) < MAX_DEPTH:
            self._open.append(_CLOSES[char])
            self._at += 1
        elif self._open and char == self._open[-1]:
            self._open.pop()
            self._at += 1
        else:
            return False
        return True

    def _end(self, pieces: tuple[Piece, ...]) -> None:
        read = self.skip(self._at or 1)
        if pieces:
            self.calls += len(pieces) // 2
            self.emit(pieces)
        else:
            self.say(read)
        self.state = self._outside


def _parse(text: str, first: int) -> tuple[Piece, ...]:
    """A start and the arguments for each call of the list; nothing when it is no list of calls."""
    pieces: list[Piece] = []
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        for call, node in enumerate(tree.elts if isinstance(tree, ast.List) else [], first):
            name, arguments = _read_call(node)
            pieces += [CallStart(call, name), CallArguments(call, json_text(arguments))]
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return ()
    return tuple(pieces)


def _read_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("an argument without a name, or one twice")
        arguments[keyword.arg] = _value(keyword.value)
    return ast.unparse(node.func), arguments


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values)}
    return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a JSON object's keys are strings")
    return node.value

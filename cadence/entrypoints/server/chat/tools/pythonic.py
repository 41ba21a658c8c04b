"""[f(a=1), g(b="x")]: calls as Python writes them. A list comes whole or not at all."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.arguments import WholeArguments
from cadence.entrypoints.server.chat.tools.syntax import WAIT, Beginning, CallBegun, CallPosition

MAX_DEPTH = 50
_HEAD = re.compile(r"\[\s*(?P<name>[^\W\d][\w.-]*\s*)?")
_QUIET = re.compile(r"[^\"'()\[\]{}]+")  # a run outside strings
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "\"'"}
_CLOSES = {"(": ")", "[": "]", "{": "}"}
_TOKEN = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|(?P<zeros>(?<![\w.])0+(?=[1-9]))""", re.DOTALL)
_LINE_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*"|[^\n\[\](){}"']+|.|\n""", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_JSON_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True)
class PythonSyntax:
    """A list of calls; with `end`, calls one below the other up to that tag."""

    end: str = ""
    marks: tuple[str, ...] = ()

    def begin(self, place: CallPosition) -> Beginning:
        return self._lines(place) if self.end else self._list(place)

    def _lines(self, place: CallPosition) -> Beginning:
        end = place.rest.find(self.end)
        if end < 0 and not place.final:
            return WAIT
        calls = read_calls("[" + ", ".join(_whole_lines(place.rest[: max(end, 0)])) + "]")
        return _begun(end, place.number, calls)

    def _list(self, place: CallPosition) -> Beginning:
        if place.could_be("["):
            return WAIT
        head = _HEAD.match(place.rest)
        if head is None:
            return None
        if head.end() == len(place.rest) and not place.final:
            return WAIT
        if not head["name"] or not place.rest.startswith("(", head.end()):
            return None
        end = _closing(place.rest)
        if end == 0:
            return None if place.final else WAIT
        return _begun(end, place.number, read_calls(place.rest[:end])) if end > 0 else None


def _begun(length: int, number: int, calls: list[tuple[str, dict[str, Any]]]) -> Beginning:
    try:
        return CallBegun(length, WholeArguments(number, calls)) if calls else None
    except (ValueError, RecursionError):
        return None


def _whole_lines(text: str) -> list[str]:
    """Without their commas and without empty ones; a line that leaves a bracket open goes on with the next."""
    lines, depth = [list[str]()], 0
    for token in _LINE_TOKEN.findall(text):
        depth += (token in _CLOSES) - (token in _CLOSES.values())
        if token == "\n" and depth <= 0:
            lines.append([])
            depth = 0
        else:
            lines[-1].append(token)
    return [line for line in ("".join(parts).strip().rstrip(",") for parts in lines) if line]


def _closing(text: str) -> int:
    """Where the list that begins `text` ends; 0 when it has not ended, -1 where its brackets do not fit."""
    at, quote, opened = 0, "", [""]
    while at < len(text):
        char = text[at]
        if run := (_IN_STRING[quote] if quote else _QUIET).match(text, at):
            at = run.end()
            continue
        at += 1
        if quote:
            at += char == "\\"
            quote = "" if char == quote else quote
        elif char in "\"'":
            quote = char
        elif char in _CLOSES and len(opened) <= MAX_DEPTH:
            opened.append(_CLOSES[char])
        elif char == opened[-1]:
            opened.pop()
            if len(opened) == 1:
                return at
        else:
            return -1
    return 0


def read_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """The calls of the list, each a name and its arguments; none when it is no list of calls."""
    try:
        tree = _parsed(text.strip())
        return [_read_call(node) for node in tree.elts] if isinstance(tree, ast.List) else []
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):
        return []


def _parsed(text: str) -> ast.expr:
    """Models write what Python does not take: line breaks in strings, and numbers that begin with 0."""
    try:
        return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return ast.parse(_TOKEN.sub(_repaired, text), mode="eval").body


def _repaired(token: re.Match[str]) -> str:
    if token["zeros"]:
        return ""
    return _CONTROL.sub(lambda char: f"\\x{ord(char.group()):02x}", token.group())


def _read_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub):  # the name has a hyphen
        name, arguments = _read_call(node.right)
        return f"{ast.unparse(node.left).replace(' ', '')}-{name}", arguments
    if not isinstance(node, ast.Call) or node.args:
        raise ValueError("not a call with named arguments")
    if not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError("not the name of a function")
    arguments: dict[str, Any] = {}
    for keyword in node.keywords:
        if keyword.arg is None or keyword.arg in arguments:
            raise ValueError("an argument without a name, or one twice")
        arguments[keyword.arg] = _value(keyword.value)
    return ast.unparse(node.func), arguments


def _value(node: ast.expr) -> Any:
    if isinstance(node, ast.Name) and node.id in _JSON_NAMES:
        return _JSON_NAMES[node.id]
    if isinstance(node, ast.List | ast.Tuple | ast.Set):
        return [_value(item) for item in node.elts]
    if isinstance(node, ast.Dict):
        return {_key(key): _value(value) for key, value in zip(node.keys, node.values)}
    return ast.literal_eval(node)


def _key(node: ast.expr | None) -> str:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        raise ValueError("a JSON object's keys are strings")
    return node.value

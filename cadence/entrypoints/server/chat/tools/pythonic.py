"""[f(a=1), g(b="x")]: calls as Python writes them. A list comes whole or not at all."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.server.chat.tools.held_call import BracketScanner, HeldCall, TagScanner
from cadence.entrypoints.server.chat.tools.syntax import MAX_HEADER, WAIT, Beginning, CallBegun, CallPosition

_HEAD = re.compile(r"\[\s*(?P<name>[^\W\d][\w.-]*\s*)?")
# Escapes are read in pairs outside strings, too: no quote that stands in one is looked at as what may open a string.
_TOKEN = re.compile(
    r"""'(?:[^'\\]|\\.)*+'|"(?:[^"\\]|\\.)*+"|(?P<escape>\\.)|(?P<zeros>(?<![\w.])0+(?=[1-9]))""", re.DOTALL
)
_LINE_TOKEN = re.compile(r"""'(?:[^'\\\n]|\\.)*+'|"(?:[^"\\\n]|\\.)*+"|\\[^\n]|[^\n\[\](){}"'\\]+|.""", re.DOTALL)
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
        if place.could_be(self.end):
            return WAIT
        if place.rest.startswith(self.end):
            return None
        scanner = TagScanner(self.end, quote="", passed=0, keeps=True)
        return CallBegun(0, HeldCall(place.number, scanner, _read_lines))

    def _list(self, place: CallPosition) -> Beginning:
        if place.could_be("["):
            return WAIT
        head = _HEAD.match(place.rest, 0, MAX_HEADER)
        if head is None:
            return None
        if head.end() == len(place.rest) and not place.final:
            return WAIT
        if not head["name"] or not place.rest.startswith("(", head.end()):
            return None
        return CallBegun(0, HeldCall(place.number, BracketScanner(), read_calls))


def _read_lines(text: str) -> list[tuple[str, dict[str, Any]]]:
    return read_calls("[" + ", ".join(_whole_lines(text)) + "]")


def _whole_lines(text: str) -> list[str]:
    """Without their commas and without empty ones; a line that leaves a bracket open goes on with the next."""
    lines, depth = [list[str]()], 0
    for token in _LINE_TOKEN.findall(text):
        depth += (token in ("(", "[", "{")) - (token in (")", "]", "}"))
        if token == "\n" and depth <= 0:
            lines.append([])
            depth = 0
        else:
            lines[-1].append(token)
    return [line for line in ("".join(parts).strip().rstrip(",") for parts in lines) if line]


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
    if token["escape"]:
        return token["escape"]
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

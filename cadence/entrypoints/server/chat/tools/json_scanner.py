"""One JSON value, checked as it arrives."""

from __future__ import annotations

import re
from enum import Enum

MAX_DEPTH = 100
_SPACE = " \t\r\n"
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')  # a run inside a string
_SCALAR_RUN = re.compile(r"[A-Za-z0-9+.-]+")
_SCALAR = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?|true|false|null")
_HEX = frozenset("0123456789abcdefABCDEF")
_CLOSES = {"{": "}", "[": "]"}


class Mode(Enum):
    VALUE = 0  # a value must come
    ITEM = 1  # a value or ]
    FIRST_KEY = 2  # a key or }
    KEY = 3
    COLON = 4
    AFTER = 5  # , or the end of what is open
    STRING = 6
    ESCAPE = 7
    SCALAR = 8
    DONE = 9  # the value is complete: what follows is not part of it
    BAD = 10  # this is not JSON


class JsonScanner:
    """Takes text run by run and gives it back as valid JSON; raw control characters in strings become escapes, numbers
    and escapes come whole. A scalar at the top level has no end of its own, so values here are objects."""

    __slots__ = ("_in_key", "_pending", "mode", "stack")

    def __init__(self) -> None:
        self.mode = Mode.VALUE
        self.stack: list[str] = []
        self._in_key = False
        self._pending: list[str] = []  # parts of a scalar or an escape that has begun

    def take(self, text: str, at: int) -> tuple[int, str]:
        """Reads a run of text[at:]: where it ends, and the JSON that became certain. Either the position or the mode
        moves; a bad character is not read."""
        if self.mode is Mode.STRING:
            return self._string(text, at)
        if self.mode is Mode.ESCAPE:
            return self._escape(text, at)
        if self.mode is Mode.SCALAR:
            return self._scalar(text, at)
        char = text[at]
        if char in _SPACE:
            return at + 1, char
        return self._structure(char, at)

    def _structure(self, char: str, at: int) -> tuple[int, str]:
        mode = self.mode
        if mode in (Mode.VALUE, Mode.ITEM) and self._begin_value(char):
            return at + 1, "" if self.mode is Mode.SCALAR else char
        if char == '"' and mode in (Mode.KEY, Mode.FIRST_KEY):
            self.mode, self._in_key = Mode.STRING, True
        elif char == ":" and mode is Mode.COLON:
            self.mode = Mode.VALUE
        elif char == "," and mode is Mode.AFTER:
            self.mode = Mode.KEY if self.stack[-1] == "{" else Mode.VALUE
        elif self.stack and char == _CLOSES[self.stack[-1]] and mode in (Mode.AFTER, Mode.FIRST_KEY, Mode.ITEM):
            self.stack.pop()
            self._end_value()
        else:
            self.mode = Mode.BAD
            return at, ""
        return at + 1, char

    def _begin_value(self, char: str) -> bool:
        if char in _CLOSES and len(self.stack) < MAX_DEPTH:
            self.stack.append(char)
            self.mode = Mode.FIRST_KEY if char == "{" else Mode.ITEM
        elif char == '"':
            self.mode, self._in_key = Mode.STRING, False
        elif _SCALAR_RUN.match(char):
            self.mode, self._pending = Mode.SCALAR, [char]
        else:
            return False
        return True

    def _end_value(self) -> None:
        self.mode = Mode.AFTER if self.stack else Mode.DONE

    def _string(self, text: str, at: int) -> tuple[int, str]:
        if run := _PLAIN.match(text, at):
            return run.end(), run.group()
        char = text[at]
        if char == '"':
            if self._in_key:
                self.mode = Mode.COLON
            else:
                self._end_value()
            return at + 1, char
        if char == "\\":
            self.mode, self._pending = Mode.ESCAPE, [char]
            return at + 1, ""
        return at + 1, f"\\u{ord(char):04x}"

    def _escape(self, text: str, at: int) -> tuple[int, str]:
        char = text[at]
        fits = char in _HEX if len(self._pending) > 1 else char in '"\\/bfnrtu'
        if not fits:
            self.mode = Mode.BAD
            return at, ""
        self._pending.append(char)
        if self._pending[1] == "u" and len(self._pending) < 6:
            return at + 1, ""
        self.mode = Mode.STRING
        return at + 1, "".join(self._pending)

    def _scalar(self, text: str, at: int) -> tuple[int, str]:
        if run := _SCALAR_RUN.match(text, at):
            self._pending.append(run.group())
            return run.end(), ""
        scalar = "".join(self._pending)
        if not _SCALAR.fullmatch(scalar):
            self.mode = Mode.BAD
            return at, ""
        self._end_value()
        return at, scalar

"""Calls that come whole or not at all: their text is held until its end is found; each character is looked at once."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Protocol

from cadence.entrypoints.server.chat.tools.arguments import WholeArguments
from cadence.entrypoints.server.chat.tools.base import Piece
from cadence.entrypoints.server.chat.tools.machine import overlap

MAX_DEPTH = 50
_QUIET = re.compile(r"[^\"'()\[\]{}]+")  # a run outside strings
_IN_STRING = {quote: re.compile(rf"[^{quote}\\]+") for quote in "\"'"}
_CLOSES = {"(": ")", "[": "]", "{": "}"}

Calls = list[tuple[str, dict[str, Any]]]


class EndScanner(Protocol):
    found: bool  # the end
    bad: bool  # none can come

    def take(self, text: str, at: int) -> int:
        """Looks at text[at:]; gives where it stopped. Text that was not looked at comes again."""
        ...


class BracketScanner:
    """Up to the bracket that closes the first one, in a text that reads as Python."""

    def __init__(self) -> None:
        self.found = False
        self.bad = False
        self._quote = ""  # of the string that is open
        self._escaped = False  # the next character is part of a string, whatever it is
        self._opened = [""]  # what closes each open bracket

    def take(self, text: str, at: int) -> int:
        while at < len(text) and not (self.found or self.bad):
            quiet = _IN_STRING[self._quote] if self._quote else _QUIET
            if not self._escaped and (run := quiet.match(text, at)):
                at = run.end()
                continue
            self._one(text[at])
            at += 1
        return at

    def _one(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif self._quote:
            self._escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in "\"'":
            self._quote = char
        elif char in _CLOSES and len(self._opened) <= MAX_DEPTH:
            self._opened.append(_CLOSES[char])
        elif char == self._opened[-1]:
            self._opened.pop()
            self.found = len(self._opened) == 1
        else:
            self.bad = True


class TagScanner:
    """Up to a tag that does not stand in a string."""

    def __init__(self, tag: str, quote: str, passed: int, keeps: bool) -> None:
        """quote: what opens and closes a string, "" = nothing does; passed: characters in which the tag does not count;
        keeps: the tag is part of what follows"""
        self.found = False
        self.bad = False
        self._tag, self._quote = tag, quote
        self._passed = passed
        self._keeps = keeps
        self._in_string = False

    def take(self, text: str, at: int) -> int:
        passed = min(self._passed, len(text) - at)
        self._passed -= passed
        at += passed
        while not self.found:
            tags = (self._quote,) if self._in_string else tuple(tag for tag in (self._tag, self._quote) if tag)
            hits = [(hit, tag) for tag in tags if (hit := text.find(tag, at)) >= 0]
            if not hits:
                return len(text) - max(overlap(text[at:], tag) for tag in tags)
            hit, tag = min(hits)
            self.found = tag == self._tag
            at = hit if self.found and self._keeps else hit + len(tag)
            self._in_string ^= not self.found
        return at


class HeldCall:
    def __init__(self, number: int, scanner: EndScanner, read: Callable[[str], Calls]) -> None:
        """read: all its text -> its calls, none where it has none. ValueError, as if there were none"""
        self.pieces: list[Piece] = []
        self.begun = 0
        self.number = number
        self.done = False
        self.bad = False
        self._scanner = scanner
        self._read = read
        self._parts: list[str] = []

    @property
    def complete(self) -> bool:
        return self.done

    def push(self, text: str, at: int) -> int:
        end = self._scanner.take(text, at)
        self._parts.append(text[at:end])
        if self._scanner.found:
            self._settle()
        self.bad |= self._scanner.bad
        return end

    def cut(self) -> None:
        """Half a call is none."""

    def leftover(self) -> str:
        return "".join(self._parts) if not self.done else ""

    def _settle(self) -> None:
        try:
            calls = self._read("".join(self._parts))
            self.pieces = WholeArguments(self.number, calls).pieces
        except (ValueError, RecursionError):
            calls = []
        self.begun = len(calls)
        self.done, self.bad = bool(calls), not calls

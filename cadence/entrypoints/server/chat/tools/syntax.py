"""How one call is written: what a format's row says, and how it begins to read a call."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from cadence.entrypoints.server.chat.tools.arguments import ArgumentsStream, CallReader, WholeArguments
from cadence.entrypoints.server.chat.tools.call_object import CallObject, Keys
from cadence.entrypoints.server.chat.tools.held_call import Calls, HeldCall, TagScanner
from cadence.entrypoints.server.chat.tools.schema import Schemas

PLAIN_KEYS = Keys()
MAX_HEADER = 400  # characters from a call's opening to its arguments


@dataclass(frozen=True, slots=True)
class CallPosition:
    """Where a call may begin."""

    rest: str  # the text from there on
    final: bool  # no more will come
    number: int  # of the call
    schemas: Schemas

    def could_be(self, *tags: str) -> bool:
        """Whether the rest is nothing, or a true beginning of a tag, so that one has to wait."""
        return not self.final and any(tag != self.rest and tag.startswith(self.rest) for tag in tags)


@dataclass(frozen=True, slots=True)
class CallBegun:
    length: int  # of the call's opening
    call: CallReader


class Wait:
    """It cannot be told yet whether a call begins."""


WAIT = Wait()
Beginning = CallBegun | Wait | None  # None: no call begins here


class Syntax(Protocol):
    @property
    def marks(self) -> tuple[str, ...]:
        """The markers it is written with."""
        ...

    def begin(self, place: CallPosition) -> Beginning: ...


@dataclass(frozen=True, slots=True)
class ObjectSyntax:
    """{"name": …, "arguments": {…}}"""

    keys: Keys = PLAIN_KEYS
    marks: tuple[str, ...] = ()

    def begin(self, place: CallPosition) -> Beginning:
        if place.could_be("{"):
            return WAIT
        return CallBegun(0, CallObject(place.number, self.keys)) if place.rest.startswith("{") else None


@dataclass(frozen=True, slots=True)
class OneOf:
    """The first of several ways that fits."""

    syntaxes: tuple[Syntax, ...]

    @property
    def marks(self) -> tuple[str, ...]:
        return tuple(mark for syntax in self.syntaxes for mark in syntax.marks)

    def begin(self, place: CallPosition) -> Beginning:
        for syntax in self.syntaxes:
            if (begun := syntax.begin(place)) is not None:
                return begun
        return None


@dataclass(frozen=True, slots=True)
class NamedSyntax:
    """A header with the name (and the id), then the arguments: a JSON object."""

    open: str  # before the header
    until: str  # after the header; "{" is the object's own
    header: re.Pattern[str]  # all of the header: groups `name` and perhaps `id`
    fences: tuple[str, ...] = ()  # may stand between header and object
    empty: tuple[str, ...] = ()  # what follows a header without arguments
    inner: tuple[str, ...] = ()  # markers inside the header

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.open, self.until, *self.fences, *self.empty, *self.inner)

    def begin(self, place: CallPosition) -> Beginning:
        head = Head(self.open, self.until, self.header, keeps=self.until == "{")
        header = head.read(place)
        if header is None or isinstance(header, Wait):
            return header
        return self._arguments(place, _after(place.rest, head.end(header)), header.groupdict())

    def _arguments(self, place: CallPosition, at: int, groups: dict[str, str]) -> Beginning:
        for fence in self.fences:
            ahead = CallPosition(place.rest[at:], place.final, place.number, place.schemas)
            if ahead.rest and ahead.could_be(fence):
                return WAIT
            at = _after(place.rest, at + len(fence)) if ahead.rest.startswith(fence) else at
        ahead = CallPosition(place.rest[at:], place.final, place.number, place.schemas)
        if at < MAX_HEADER and ahead.could_be("{", *self.fences, *self.empty):
            return WAIT
        if ahead.rest.startswith("{"):
            return CallBegun(at, ArgumentsStream(place.number, groups["name"], groups.get("id") or ""))
        if ahead.rest.startswith(self.empty) if self.empty else False:
            return CallBegun(at, WholeArguments(place.number, [(groups["name"], {})]))
        return None


def _after(text: str, at: int) -> int:
    """Where the white space at `at` ends."""
    return len(text) - len(text[at:].lstrip())


@dataclass(frozen=True, slots=True)
class Head:
    """`open`, then what `inner` matches, then `close`."""

    open: str
    close: str
    inner: re.Pattern[str]
    keeps: bool = False  # `close` belongs to what follows

    def end(self, match: re.Match[str]) -> int:
        return match.end() + (0 if self.keeps else len(self.close))

    def read(self, place: CallPosition) -> re.Match[str] | Wait | None:
        """The match of `inner`."""
        if place.could_be(self.open):
            return WAIT
        if not place.rest.startswith(self.open):
            return None
        end = place.rest.find(self.close, len(self.open), MAX_HEADER)
        if end < 0:
            return None if place.final or len(place.rest) >= MAX_HEADER else WAIT
        return self.inner.fullmatch(place.rest, len(self.open), end)


@dataclass(frozen=True, slots=True)
class TextSyntax:
    """A head with the name, then text up to `end` that `convert` turns into arguments; a call comes whole.

    convert: ValueError where the text is no arguments."""

    head: Head
    end: str
    convert: Callable[[str, Schemas, str], dict[str, Any]]
    quote: str = ""  # what opens and closes a string, in which `end` does not count

    @property
    def marks(self) -> tuple[str, ...]:
        return (self.head.open, self.head.close, self.end, self.quote)

    def begin(self, place: CallPosition) -> Beginning:
        match = self.head.read(place)
        if match is None or isinstance(match, Wait):
            return match
        name, start = match["name"], self.head.end(match)

        def read(text: str) -> Calls:
            return [(name, self.convert(text[start : -len(self.end)], place.schemas, name))]

        return CallBegun(0, HeldCall(place.number, TagScanner(self.end, self.quote, start, keeps=False), read))

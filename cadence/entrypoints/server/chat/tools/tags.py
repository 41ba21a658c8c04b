"""Calls whose parameters are written one by one between tags, typed by the tool's schema."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from cadence.entrypoints.server.chat.tools.arguments import json_text
from cadence.entrypoints.server.chat.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.machine import overlap
from cadence.entrypoints.server.chat.tools.schema import STRING, Schemas, as_json, literal
from cadence.entrypoints.server.chat.tools.syntax import MAX_HEADER, Beginning, CallBegun, CallPosition, Head, Wait

ANY: frozenset[str] = frozenset()
CDATA = ("<![CDATA[", "]]>")


@dataclass(frozen=True, slots=True)
class TagSyntax:
    head: Head  # group `name`, perhaps `id`
    parameter: Head  # group `key`; perhaps `string` ("true", "false") or `type`: how the value is written
    value_end: str
    end: tuple[str, ...]  # after the last parameter
    implied: tuple[str, ...] = ()  # ends a value, or a call, that its own tag does not
    value_open: str = ""  # between the key and the value
    trim: str = "newlines"  # what is not part of a value: "newlines" (one at each end), "space" or "nothing"
    unknown: frozenset[str] = STRING  # the types of a parameter that the tool does not know
    cdata: bool = False  # a value may stand in <![CDATA[…]]>
    wrappers: tuple[str, ...] = ()  # a lone parameter of this name that the tool does not have holds all arguments

    @property
    def marks(self) -> tuple[str, ...]:
        heads = (self.head.open, self.head.close, self.parameter.open, self.parameter.close)
        return (*heads, self.value_open, self.value_end, *self.end)

    def begin(self, place: CallPosition) -> Beginning:
        match = self.head.read(place)
        if match is None or isinstance(match, Wait):
            return match
        name = _unquoted(match["name"])
        if not name or not name.isprintable():
            return None
        start = CallStart(place.number, name, match.groupdict().get("id") or "")
        return CallBegun(self.head.end(match), TagCall(self, start, place.schemas))


class TagCall:
    """The call begins with its first parameter, or with its end where it has none. Strings stream; what has another
    type is sent when it is complete."""

    def __init__(self, syntax: TagSyntax, start: CallStart, schemas: Schemas) -> None:
        self.pieces: list[Piece] = []
        self.begun = 0
        self.number = start.call
        self.done = False
        self.bad = False
        self._syntax = syntax
        self._start = start
        self._schemas = schemas
        self._types = STRING
        self._in_value = False
        self._value = HeldText()  # read and not sent
        self._first = True  # nothing of the value has been sent
        self._raw = HeldText()  # read and not sent, with its tags
        self._wrapper = ""  # the key of a value that may be all the arguments
        self._ends = (syntax.value_end, *syntax.implied)

    @property
    def complete(self) -> bool:
        return self.done

    def push(self, text: str, at: int) -> int:
        while at < len(text) and not (self.done or self.bad):
            end = self._read_value(text, at) if self._in_value else self._read_tag(text, at)
            if end == at and not (self.done or self.bad):
                break
            at = end
        return at

    def cut(self) -> None:
        """Begun arguments stay as far as they came."""

    def leftover(self) -> str:
        return self._raw.joined()

    def _read_tag(self, text: str, at: int) -> int:
        syntax = self._syntax
        start = len(text) - len(text[at:].lstrip())
        self._raw.add(text[at:start])
        place = CallPosition(text[start:], False, self.number, self._schemas)
        if place.could_be(syntax.parameter.open, *syntax.end, *syntax.implied):
            return start
        if tag := next((tag for tag in syntax.end if place.rest.startswith(tag)), ""):
            self._finish()
            return start + len(tag)
        match = syntax.parameter.read(place)
        if isinstance(match, Wait):
            return start
        if match is None:
            self._give_up(place.rest)
            return start
        return self._open_value(text, start, match)

    def _open_value(self, text: str, start: int, match: re.Match[str]) -> int:
        end = start + self._syntax.parameter.end(match)
        if opening := self._syntax.value_open:
            end = len(text) - len(text[end:].lstrip())
            if end - start < MAX_HEADER and CallPosition(text[end:], False, 0, self._schemas).could_be(opening):
                return start
            if not text.startswith(opening, end):
                self._give_up("")
                return start
            end += len(opening)
        self._raw.add(text[start:end])
        self._begin_parameter(match.groupdict())
        return end

    def _give_up(self, rest: str) -> None:
        """A call that something else follows than a parameter or its end is over, or none."""
        if rest.startswith(self._syntax.implied) if self._syntax.implied else False:
            self._finish()
        else:
            self.bad = True

    def _begin_parameter(self, groups: Mapping[str, str | None]) -> None:
        key = _unquoted(groups["key"] or "")
        self._types = self._schemas.types(self._start.name, key) or self._written_types(groups)
        self._settle_wrapper()
        properties = self._schemas.properties(self._start.name)
        if not self.begun and key in self._syntax.wrappers and properties and key not in properties:
            self._wrapper, self._types = key, ANY
        else:
            self._send(f"{', ' if self.begun else '{'}{json_text(key)}: {chr(34) if self._types == STRING else ''}")
        self._in_value, self._first = True, True
        self._value.clear()

    def _written_types(self, groups: Mapping[str, str | None]) -> frozenset[str]:
        if groups.get("string"):
            return STRING if groups["string"] == "true" else ANY
        if groups.get("type"):
            return STRING if groups["type"] == "string" else ANY
        return self._syntax.unknown

    def _read_value(self, text: str, at: int) -> int:
        """Up to the tag that ends the value, or to where one may be beginning."""
        hits = [(hit, tag) for tag in self._ends if (hit := text.find(tag, at)) >= 0]
        held = max(overlap(text[at:], tag) for tag in self._ends)
        end, tag = min(hits, default=(len(text) - held, ""))
        piece = text[at:end]
        self._value.add(piece)
        self._raw.add(piece)
        if tag:
            self._end_value()
            end += len(tag) if tag == self._syntax.value_end else 0
        elif self._types == STRING and not self._syntax.cdata and (piece.strip() or self._syntax.trim != "space"):
            self._stream_value()
        return end

    def _stream_value(self) -> None:
        """Sends what is certain of a string: not the white space that may turn out to be its end."""
        value = self._trimmed_start(self._value.joined())
        kept = value
        if self._syntax.trim == "newlines":
            kept = value.removesuffix("\n")
        elif self._syntax.trim == "space":
            kept = value.rstrip()
        if kept:
            self._send(json_text(kept)[1:-1])
            self._first = False
            self._value.clear()
            self._value.add(value[len(kept) :])
            self._raw.add(value[len(kept) :])

    def _end_value(self) -> None:
        value = self._trimmed_start(self._value.take())
        if self._syntax.trim == "newlines":
            value = value.removesuffix("\n")
        elif self._syntax.trim == "space":
            value = value.rstrip()
        if self._syntax.cdata and value.startswith(CDATA[0]) and value.endswith(CDATA[1]):
            value = value[len(CDATA[0]) : -len(CDATA[1])]
        self._in_value = False
        if self._wrapper:
            self._value.add(value)
            return
        self._send(json_text(value)[1:] if self._types == STRING else as_json(value, self._types))

    def _trimmed_start(self, value: str) -> str:
        if not self._first or self._syntax.trim == "nothing":
            return value
        return value.removeprefix("\n") if self._syntax.trim == "newlines" else value.lstrip()

    def _settle_wrapper(self) -> None:
        """Another parameter follows: it wrapped nothing."""
        if self._wrapper:
            self._send(f"{{{json_text(self._wrapper)}: {as_json(self._value.joined(), ANY)}")
            self._wrapper = ""

    def _unwrapped(self) -> str:
        """The JSON of all arguments, if that is what the wrapper holds."""
        try:
            held = literal(self._value.joined().strip())
            written = json_text(held)
        except (ValueError, RecursionError):
            return ""
        if not isinstance(held, dict) or not set(held) <= set(self._schemas.properties(self._start.name)):
            return ""
        return written

    def _finish(self) -> None:
        if self._wrapper and (held := self._unwrapped()):
            self._send(held)
        else:
            self._settle_wrapper()
            self._send("}" if self.begun else "{}")
        self.done = True

    def _send(self, written: str) -> None:
        if not self.begun:
            self.begun = 1
            self.pieces.append(self._start)
        self.pieces.append(CallArguments(self.number, written))
        self._raw.clear()


def _unquoted(name: str) -> str:
    name = name.strip()
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] and name[0] in "\"'" else name

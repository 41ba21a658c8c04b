"""One call written as a JSON object with a name and arguments, in either order."""

from __future__ import annotations

import json
from dataclasses import dataclass

from cadence.entrypoints.server.chat.tools.arguments import json_text
from cadence.entrypoints.server.chat.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.json_scanner import JsonScanner, Mode


@dataclass(frozen=True, slots=True)
class Keys:
    """What the parts of a call are called."""

    name: tuple[str, ...] = ("name",)
    arguments: tuple[str, ...] = ("arguments", "parameters")
    id: tuple[str, ...] = ()  # where the model's own id stands
    name_is_key: bool = False  # {"function": {…}}: the only key is the name, its value the arguments
    arguments_required: bool = False
    strict: bool = False  # an object with other keys than these, "id" and "type" is no call


class CallObject:
    """Streams the arguments once the name is known and they are an object that is empty or has a first key."""

    def __init__(self, call: int, keys: Keys) -> None:
        self.pieces: list[Piece] = []
        self.begun = 0
        self.bad = False
        self.done = False
        self.number = call
        self.complete = False
        self._keys = keys
        self._scanner = JsonScanner()
        self._raw = HeldText()  # read and not sent
        self._key = HeldText()  # JSON text of the key, with the punctuation around it
        self._role = ""  # of the value that is being read: name, arguments, id, other
        self._value = HeldText()  # JSON text of the value that is being read, but not of arguments that are an object
        self._opening = ""  # the first character of that value
        self._name = ""
        self._id = ""
        self._arguments = HeldText()  # JSON text that waits to be sent
        self._seen_arguments = False
        self._keyed = False  # the arguments have a first key

    def push(self, text: str, at: int) -> int:
        while at < len(text) and not (self.done or self.bad):
            before = self._scanner.mode
            end, out = self._scanner.take(text, at)
            self._raw.add(text[at:end])
            at = end
            if self._scanner.mode is Mode.BAD:
                self.bad = True
            else:
                self._read(before, out)
        return at

    def cut(self) -> None:
        """Begun arguments stay as far as they came."""
        if self.begun and self._role == "arguments":
            self.pieces.append(CallArguments(self.number, self._raw.take()))

    def leftover(self) -> str:
        return self._raw.joined()

    def _read(self, before: Mode, out: str) -> None:
        scanner, depth = self._scanner, len(self._scanner.stack)
        if scanner.mode is Mode.DONE:
            self._end()
        elif self._role:
            self._value_text(before, out)
            if depth == 1 and scanner.mode is Mode.AFTER:
                self._end_value()
        else:
            self._key.add(out)
            if depth == 1 and before is Mode.COLON and scanner.mode is Mode.VALUE:
                self._begin_value()

    def _begin_value(self) -> None:
        key = json.loads(self._key.take().strip("{,: \t\r\n"))
        self._value.clear()
        self._opening = ""
        self._role = self._role_of(key)
        twice = (self._role == "name" and self._name) or (self._role == "arguments" and self._seen_arguments)
        self.bad = bool(twice) or (self._role == "other" and self._keys.strict and key not in ("id", "type"))
        if self._role == "arguments":
            self._seen_arguments = True
            if self._keys.name_is_key:
                self._set_name(key)

    def _role_of(self, key: str) -> str:
        keys = self._keys
        if keys.name_is_key or key in keys.arguments:
            return "arguments"
        return "name" if key in keys.name else "id" if key in keys.id else "other"

    def _value_text(self, before: Mode, out: str) -> None:
        begins = not self._opening
        text = out.lstrip() if begins else out
        self._opening = self._opening or text[:1]
        if self._role != "arguments" or self._opening != "{":
            self._value.add(text)
            self.bad = self._opening in ("{", "[") and (self._role != "other" or self._keys.strict)
            return
        self._arguments.add(text[len("{") :] if begins else text)
        self._keyed |= before is Mode.COLON
        if self._keyed and self._name and out:
            self._send()

    def _end_value(self) -> None:
        role, value, self._role = self._role, self._value.take(), ""
        is_string = self._opening == '"'
        if role == "name":
            self._set_name(json.loads(value) if is_string else None)
        elif role == "id":
            self._set_id(json.loads(value) if is_string else value)
        elif role == "arguments" and self._opening != "{":
            self._whole_arguments(value)
        self.complete = self._seen_arguments and bool(self._name) and not self.bad
        if self.complete:
            self._send()

    def _set_name(self, name: object) -> None:
        self.bad = not (isinstance(name, str) and name and name.isprintable())
        self._name = "" if self.bad else str(name)

    def _set_id(self, written: str) -> None:
        """A number stays as it is written, however long it is; a call without an id of its own gets another."""
        self._id = written if written != "null" and written.isprintable() else ""

    def _whole_arguments(self, value: str) -> None:
        """Arguments whose JSON is no object: none at all, or an object's JSON inside a string."""
        try:
            parsed = json.loads(value)
            if parsed is None or parsed == "":
                parsed = {}
            elif isinstance(parsed, str):
                parsed = json.loads(parsed)
            written = json_text(parsed)
        except (ValueError, RecursionError):
            parsed, written = None, ""
        self.bad = not isinstance(parsed, dict)
        self._arguments.add(written[len("{") :])

    def _end(self) -> None:
        if not self._name or (self._keys.arguments_required and not self._seen_arguments):
            self.bad = True
            return
        if not self._seen_arguments:
            self._arguments.add("}")
            self._send()
        self.done = self.complete = True

    def _send(self) -> None:
        """`_arguments` is kept without its opening brace, which goes out with the start."""
        opening = ""
        if not self.begun:
            self.begun, opening = 1, "{"
            self.pieces.append(CallStart(self.number, self._name, self._id))
        if opening or self._arguments:
            self.pieces.append(CallArguments(self.number, opening + self._arguments.take()))
        self._raw.clear()

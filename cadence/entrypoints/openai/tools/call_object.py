"""One call written as a JSON object with a name and arguments, in either order."""

from __future__ import annotations

import json

from cadence.entrypoints.openai.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.openai.tools.json_scanner import JsonScanner, Mode

ARGUMENT_KEYS = ("arguments", "parameters")
OTHER_KEYS = ("id", "type")  # read and dropped


class CallObject:
    """Streams the arguments once the name is known and they are an object that is empty or has a first key."""

    def __init__(self, call: int, *, arguments_required: bool = False) -> None:
        self.pieces: list[Piece] = []  # to be taken by the owner
        self.started = False
        self.bad = False
        self.done = False
        self.number = call
        self._required = arguments_required
        self._scanner = JsonScanner()
        self._raw = ""  # read and not sent
        self._key = ""  # JSON text of the key, with the punctuation around it
        self._in_value = False
        self._value = ""  # JSON text of the value that is being read
        self._name = ""
        self._arguments = ""  # JSON text that waits to be sent
        self._seen_arguments = False
        self._keyed = False  # the arguments have a first key

    def push(self, text: str, at: int) -> int:
        """Reads text[at:] as far as it goes; gives the new position."""
        while at < len(text) and not (self.done or self.bad):
            before = self._scanner.mode
            end, out = self._scanner.take(text, at)
            self._raw += text[at:end]
            at = end
            if self._scanner.mode is Mode.BAD:
                self.bad = True
            else:
                self._read(before, out)
        return at

    def cut(self) -> None:
        """The text ended inside the object: begun arguments stay as far as they came."""
        if self.started and self._in_value and self._key in ARGUMENT_KEYS:
            self.pieces.append(CallArguments(self.number, self._raw))
            self._raw = ""

    def leftover(self) -> str:
        """What was read and not sent, once the object is bad or the text has ended."""
        return self._raw

    def _read(self, before: Mode, out: str) -> None:
        scanner, depth = self._scanner, len(self._scanner.stack)
        if scanner.mode is Mode.DONE:
            self._end()
        elif self._in_value:
            self._value_text(before, out)
            if depth == 1 and scanner.mode is Mode.AFTER:
                self._end_value()
        else:
            self._key += out
            if depth == 1 and before is Mode.COLON and scanner.mode is Mode.VALUE:
                self._begin_value()

    def _begin_value(self) -> None:
        self._key = json.loads(self._key.strip("{,: \t\r\n"))
        self._in_value, self._value = True, ""
        known = self._key == "name" or self._key in ARGUMENT_KEYS or self._key in OTHER_KEYS
        twice = (self._key == "name" and self._name) or (self._key in ARGUMENT_KEYS and self._seen_arguments)
        self.bad = not known or bool(twice)
        self._seen_arguments |= self._key in ARGUMENT_KEYS

    def _value_text(self, before: Mode, out: str) -> None:
        self._value = (self._value + out) if self._value else out.lstrip()
        if self._key not in ARGUMENT_KEYS or not self._value.startswith("{"):
            self.bad = self._value.startswith(("{", "["))
            return
        self._arguments, self._value = self._arguments + self._value[len("{") :], "{"
        self._keyed |= before is Mode.COLON
        if self._keyed and self._name and out:
            self._send()

    def _end_value(self) -> None:
        key, value, self._in_value, self._key = self._key, self._value, False, ""
        if key == "name":
            name = json.loads(value)
            self.bad = not (isinstance(name, str) and name and name.isprintable())
            self._name = "" if self.bad else name
        elif key in ARGUMENT_KEYS and not value.startswith("{"):
            self._whole_arguments(json.loads(value))
        if self._seen_arguments and self._name and not self.bad:
            self._send()

    def _whole_arguments(self, value: object) -> None:
        """Arguments that are no object: none at all, or an object's JSON inside a string."""
        try:
            parsed = {} if value is None else json.loads(value) if isinstance(value, str) else value
            written = json.dumps(parsed, allow_nan=False)
        except (ValueError, RecursionError):
            parsed, written = None, ""
        self.bad = not isinstance(parsed, dict)
        self._arguments = written[len("{") :]

    def _end(self) -> None:
        if not self._name or (self._required and not self._seen_arguments):
            self.bad = True
            return
        if not self._seen_arguments:
            self._arguments = "}"
            self._send()
        self.done = True

    def _send(self) -> None:
        """`_arguments` is kept without its opening brace, which goes out with the start."""
        opening = ""
        if not self.started:
            self.started, opening = True, "{"
            self.pieces.append(CallStart(self.number, self._name))
        if opening or self._arguments:
            self.pieces.append(CallArguments(self.number, opening + self._arguments))
        self._arguments = self._raw = ""

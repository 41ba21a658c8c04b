"""The arguments of one call, streamed as their JSON arrives."""

from __future__ import annotations

import json
from typing import Any, Protocol

from cadence.entrypoints.server.chat.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.json_scanner import JsonScanner, Mode


class CallReader(Protocol):
    """Reads the text of one call, or of a list of them."""

    pieces: list[Piece]  # to be taken by the owner
    begun: int  # calls that have been begun
    number: int  # of the first of them
    done: bool  # what follows is not part of it
    bad: bool  # this is no call, or no longer one

    @property
    def complete(self) -> bool:
        """Every call that was begun has all its arguments, even if what follows them is bad."""
        ...

    def push(self, text: str, at: int) -> int:
        """Reads text[at:] as far as it goes; gives the new position. Text that is not read yet comes again."""
        ...

    def cut(self) -> None:
        """The text has ended."""
        ...

    def leftover(self) -> str:
        """What was read and not sent, once the call is bad or the text has ended."""
        ...


def json_text(value: Any) -> str:
    """`value` as JSON, in letters where they can be written. ValueError when JSON has no word for it."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except TypeError as error:  # bytes, a complex number, a key that is a tuple: Python has words for these
        raise ValueError(str(error)) from None
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(value, allow_nan=False)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


class ArgumentsStream:
    """A JSON object whose call is known by name. The call begins once the object is empty or has a first key."""

    def __init__(self, call: int, name: str, call_id: str = "") -> None:
        self.pieces: list[Piece] = []
        self.begun = 0
        self.number = call
        self._start = CallStart(call, name, call_id)
        self._scanner = JsonScanner()
        self._held = HeldText()  # JSON that waits for the start
        self._raw = HeldText()  # read and not sent

    @property
    def done(self) -> bool:
        return self._scanner.mode is Mode.DONE

    @property
    def bad(self) -> bool:
        return self._scanner.mode is Mode.BAD

    @property
    def complete(self) -> bool:
        return self.done

    def push(self, text: str, at: int) -> int:
        while at < len(text) and not (self.done or self.bad):
            before = self._scanner.mode
            end, out = self._scanner.take(text, at)
            self._raw.add(text[at:end])
            at = end
            self._held.add(out)
            keyed = before is Mode.COLON and self._scanner.mode is Mode.VALUE
            if out and (self.begun or keyed or self.done):
                self._send()
        return at

    def cut(self) -> None:
        """Begun arguments stay as far as they came."""
        if self.begun and self._raw:
            self.pieces.append(CallArguments(self.number, self._raw.take()))

    def leftover(self) -> str:
        return self._raw.joined()

    def _send(self) -> None:
        if not self.begun:
            self.begun = 1
            self.pieces.append(self._start)
        self.pieces.append(CallArguments(self.number, self._held.take()))
        self._raw.clear()


class WholeArguments:
    """Calls that are known all at once, without text of their own to read."""

    def __init__(self, first: int, calls: list[tuple[str, dict[str, Any]]]) -> None:
        """ValueError when JSON has no word for an argument."""
        self.pieces: list[Piece] = []
        for number, (name, arguments) in enumerate(calls, first):
            self.pieces += [CallStart(number, name), CallArguments(number, json_text(arguments))]
        self.begun = len(calls)
        self.number = first
        self.done = True
        self.bad = False
        self.complete = True

    def push(self, text: str, at: int) -> int:
        return at

    def cut(self) -> None:
        pass

    def leftover(self) -> str:
        return ""

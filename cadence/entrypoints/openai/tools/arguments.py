"""The arguments of one call, streamed as their JSON arrives."""

from __future__ import annotations

import json
from typing import Any

from cadence.entrypoints.openai.tools.base import CallArguments, CallStart, Piece
from cadence.entrypoints.openai.tools.json_scanner import JsonScanner, Mode


def json_text(value: Any) -> str:
    """`value` as JSON, in letters where they can be written. ValueError when JSON has no word for it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return text if text.isascii() or not _has_surrogates(text) else json.dumps(value, allow_nan=False)


def _has_surrogates(text: str) -> bool:
    return any("\ud800" <= char <= "\udfff" for char in text)


class ArgumentsStream:
    """A JSON object whose call is known by name. The call begins once the object is empty or has a first key."""

    def __init__(self, call: int, name: str) -> None:
        self.pieces: list[Piece] = []  # to be taken by the owner
        self.started = False
        self.number = call
        self._start = CallStart(call, name)
        self._scanner = JsonScanner()
        self._held = ""  # JSON that waits for the start
        self._raw = ""  # read and not sent

    @property
    def done(self) -> bool:
        return self._scanner.mode is Mode.DONE

    @property
    def bad(self) -> bool:
        return self._scanner.mode is Mode.BAD

    def push(self, text: str, at: int) -> int:
        """Reads text[at:] as far as it goes; gives the new position."""
        while at < len(text) and not (self.done or self.bad):
            before = self._scanner.mode
            end, out = self._scanner.take(text, at)
            self._raw += text[at:end]
            at = end
            self._held += out
            keyed = before is Mode.COLON and self._scanner.mode is Mode.VALUE
            if out and (self.started or keyed or self.done):
                self._send()
        return at

    def cut(self) -> None:
        """The text ended inside the object: begun arguments stay as far as they came."""
        if self.started and self._raw:
            self.pieces.append(CallArguments(self.number, self._raw))
            self._raw = ""

    def leftover(self) -> str:
        """What was read and not sent, once the object is bad or the text has ended."""
        return self._raw

    def _send(self) -> None:
        if not self.started:
            self.started = True
            self.pieces.append(self._start)
        self.pieces.append(CallArguments(self.number, self._held))
        self._held = self._raw = ""

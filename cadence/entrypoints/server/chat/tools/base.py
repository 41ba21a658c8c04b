"""What a tool parser is: text in pieces goes in; text, and calls with their arguments as JSON, come out.

However the text is cut, the pieces joined together are the same. What looks like a call and is none comes back as text.
A call is begun only once its name is known and its arguments look like a JSON object; what a model cuts off or spoils
after that is named by CallBroken. A stream has shown it by then and leaves it as it is: its JSON does not parse, so
that half a call is not run. An answer that is shown as a whole (`WholeCalls`) has it as text.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class CallStart:
    call: int  # 0, 1, … in the order in which the calls begin
    name: str
    id: str = ""  # as the model wrote it; "" = the format has none


@dataclass(frozen=True, slots=True)
class CallArguments:
    call: int
    json_text: str  # the next piece of the arguments' JSON


@dataclass(frozen=True, slots=True)
class CallBroken:
    call: int
    written: str  # the text that became the call's pieces; what could not follows as Text


Piece = Text | CallStart | CallArguments | CallBroken
Tools = Sequence[Mapping[str, Any]]  # OpenAI's shape: {"type": "function", "function": {...}}


class ToolParser(Protocol):
    def push(self, text: str) -> list[Piece]: ...

    def finish(self) -> list[Piece]:
        """The text has ended: what was held back."""
        ...


class NullToolParser:
    """All text is text."""

    def push(self, text: str) -> list[Piece]:
        return [Text(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class WholeCalls:
    """Calls come complete or not at all: what broke is text again. For answers that are shown as a whole."""

    def __init__(self, parser: ToolParser) -> None:
        self._parser = parser
        self._held: list[Piece] = []  # the call that may still break

    def push(self, text: str) -> list[Piece]:
        return self._settled(self._parser.push(text))

    def finish(self) -> list[Piece]:
        return [*self._settled(self._parser.finish()), *self._released()]

    def _settled(self, pieces: Sequence[Piece]) -> list[Piece]:
        settled: list[Piece] = []
        for piece in pieces:
            if isinstance(piece, CallArguments):
                self._held.append(piece)
            elif isinstance(piece, CallBroken):
                self._held.clear()
                settled.append(Text(piece.written))
            else:
                settled += self._released()
                (self._held if isinstance(piece, CallStart) else settled).append(piece)
        return settled

    def _released(self) -> list[Piece]:
        held, self._held = self._held, []
        return held

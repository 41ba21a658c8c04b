"""Telling a model's thoughts, <think>…</think>, from its answer, however the text is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from cadence.core.errors import ConfigError

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    text: str


ReasoningPiece = Thought | Text


class ReasoningParser(Protocol):
    def push(self, text: str) -> list[ReasoningPiece]: ...

    def finish(self) -> list[ReasoningPiece]:
        """The text has ended: what was held back."""
        ...


class NullReasoningParser:
    """All text is the answer."""

    def push(self, text: str) -> list[ReasoningPiece]:
        return [Text(text)] if text else []

    def finish(self) -> list[ReasoningPiece]:
        return []


class ThinkTags:
    """Thoughts come first, if at all. White space at the tags belongs to neither side.

    opened: the thoughts have begun before the first token (the prompt ends with the tag, or the model needs none)."""

    def __init__(self, opened: bool) -> None:
        self._opened = opened
        self._read = self._begin
        self._rest = ""
        self._final = False
        self._pieces: list[ReasoningPiece] = []

    def push(self, text: str) -> list[ReasoningPiece]:
        self._rest += text
        while self._rest and self._read():
            pass
        return self._taken()

    def finish(self) -> list[ReasoningPiece]:
        self._final = True
        while self._rest and self._read():
            pass
        return self._taken()

    def _begin(self) -> bool:
        """At the start: a tag, or what it stands before."""
        start = self._rest.lstrip()
        if OPEN.startswith(start) and start != OPEN and not self._final:
            return False
        if start.startswith(OPEN):
            self._rest = start[len(OPEN) :]
            self._read = self._first_thought
        else:
            self._read = self._first_thought if self._opened else self._answer
        return True

    def _first_thought(self) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._read = self._thought
        return bool(self._rest)

    def _thought(self) -> bool:
        at = self._rest.find(CLOSE)
        certain = self._rest[:at] if at >= 0 else self._rest[: self._uncertain()]
        words = certain.rstrip()
        if words:
            self._pieces.append(Thought(words))
        if at < 0:
            self._rest = "" if self._final else self._rest[len(words) :]
            return False
        self._rest = self._rest[at + len(CLOSE) :]
        self._read = self._first_answer
        return True

    def _uncertain(self) -> int:
        """Where the closing tag may be beginning."""
        if self._final:
            return len(self._rest)
        for size in range(min(len(CLOSE) - 1, len(self._rest)), 0, -1):
            if self._rest.endswith(CLOSE[:size]):
                return len(self._rest) - size
        return len(self._rest)

    def _first_answer(self) -> bool:
        self._rest = self._rest.lstrip()
        if self._rest:
            self._read = self._answer
        return bool(self._rest)

    def _answer(self) -> bool:
        self._pieces.append(Text(self._rest))
        self._rest = ""
        return False

    def _taken(self) -> list[ReasoningPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces


def make_reasoning_parser(name: str, opened: bool = False) -> ReasoningParser:
    """`deepseek_r1` models think from their first token, with or without the tag; `qwen3` models think only behind the
    tag, which may stand at the end of the prompt: then `opened`. "" = no parser."""
    if not name:
        return NullReasoningParser()
    if name not in reasoning_parser_names():
        names = ", ".join(reasoning_parser_names())
        raise ConfigError(f"reasoning_parser must be one of {names}; got {name!r}.", "reasoning_parser")
    return ThinkTags(opened or name == "deepseek_r1")


def reasoning_parser_names() -> tuple[str, ...]:
    return ("deepseek_r1", "qwen3")

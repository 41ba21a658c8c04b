"""Reasoning and tools together: one text comes in, and thoughts, text and calls come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cadence.entrypoints.server.chat.reasoning import ReasoningParser, ReasoningPiece, Thought
from cadence.entrypoints.server.chat.tools.base import CallStart, Piece, Text, ToolParser

AnswerPiece = Thought | Piece


class AnswerParser(Protocol):
    def push(self, text: str) -> list[AnswerPiece]: ...

    def finish(self) -> list[AnswerPiece]: ...


class ThoughtsFirst:
    """Calls are looked for in the answer alone: for formats whose calls look like ordinary text."""

    def __init__(self, reasoning: ReasoningParser, tools: ToolParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[AnswerPiece]:
        return self._read(self._reasoning.push(text))

    def finish(self) -> list[AnswerPiece]:
        return [*self._read(self._reasoning.finish()), *self._tools.finish()]

    def _read(self, parts: Sequence[ReasoningPiece]) -> list[AnswerPiece]:
        pieces: list[AnswerPiece] = []
        for part in parts:
            if isinstance(part, Thought):
                pieces.append(part)
            else:
                pieces += self._tools.push(part.text)
        return pieces


class CallsFirst:
    """A call ends thoughts that were not closed: for formats whose calls begin with a marker."""

    def __init__(self, reasoning: ReasoningParser, tools: ToolParser) -> None:
        self._reasoning = reasoning
        self._tools = tools

    def push(self, text: str) -> list[AnswerPiece]:
        return self._read(self._tools.push(text))

    def finish(self) -> list[AnswerPiece]:
        return [*self._read(self._tools.finish()), *self._reasoning.finish()]

    def _read(self, parts: Sequence[Piece]) -> list[AnswerPiece]:
        pieces: list[AnswerPiece] = []
        for part in parts:
            if isinstance(part, Text):
                pieces += self._reasoning.push(part.text)
            elif isinstance(part, CallStart):
                pieces += [*self._reasoning.end(), part]
            else:
                pieces.append(part)
        return pieces

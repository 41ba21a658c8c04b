"""What a tool parser is: text in pieces goes in; text, and calls with their arguments as JSON, come out.

However the text is cut, the pieces joined together are the same. What looks like a call and is none comes back as text.
A call is begun only once its name is known and its arguments look like a JSON object; what a model cuts off or spoils
after that stays as it was written, so that nobody runs half a call: its JSON does not parse.
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


@dataclass(frozen=True, slots=True)
class CallArguments:
    call: int
    json_text: str  # the next piece of the arguments' JSON


Piece = Text | CallStart | CallArguments
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


def make_tool_parser(name: str, tools: Tools) -> ToolParser:
    from cadence.entrypoints.openai.tools.registry import make

    return make(name, tools)


def tool_parser_names() -> tuple[str, ...]:
    from cadence.entrypoints.openai.tools.registry import PARSERS

    return tuple(sorted(PARSERS))


def needs_special_tokens(name: str) -> bool:
    """Whether the parser looks for special tokens, which must then not be skipped when the text is decoded."""
    return name in ("llama3_json", "mistral")

"""Tool parsers do work that grows with the text: twice the text is twice the work, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.registry import ROWS
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.entrypoints.server.chat.tools.stream import ToolStream
from cadence.entrypoints.server.chat.tools.written_values import MARK

TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]
# (what opens, what is said again and again): a call up to the very end, or many.
ENDLESS = {
    "a string": ('[f(x="', "abc "),
    "strings that never close": ("", '[f(\\"'),
    "a list": ("[f(x=[", "1, [2], "),
    "calls": ("[", "f(a=1), "),
    "a name": ("[", "abcd"),
    "lists in lists": ("", "[f(a="),
    "brackets": ("", "["),
    "lines": ("<function_calls>\n", "f(a=1)\n"),
    "words": ("<|tool_call>call:f{", "word "),
    "quotes": ("<|tool_call>call:f{", 'a:<|"|>b<|"|>,'),
    "escapes": ("<start_function_call>call:f{", "a:<escape>b<escape>,"),
    "elements": (f'{MARK}<tool_call>{MARK}<invoke name="f">', f"{MARK}<a>b{MARK}</a>"),
    "an object": ('{"name": "f", "arguments": {"a": "', "abc "),
    "objects": ("", '{"name": "f", '),
    "a block": ('<tool_call>{"name": "f", "arguments": {"a": "', "abc "),
    "a value": ("<tool_call>\n<function=f>\n<parameter=n>", "word "),
    "openings": ("", "<tool_call>"),
    "text": ("", "word [1] {2} <b> "),
}


class CountedStream(ToolStream):
    """Counts the characters that each state has before it, each time that it is asked."""

    looked_at = 0
    _asked: Callable[[], bool]

    @property
    def state(self) -> Callable[[], bool]:
        self.looked_at += len(self.rest) + 1
        return self._asked

    @state.setter
    def state(self, state: Callable[[], bool]) -> None:
        self._asked = state


def work(format: ToolFormat, text: str, size: int) -> int:
    stream = CountedStream(format, Schemas(TOOLS))
    for at in range(0, len(text), size):
        stream.push(text[at : at + size])
    stream.finish()
    return stream.looked_at


@pytest.mark.parametrize("size", [5, 1 << 20], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_twice_the_text_is_twice_the_work(kind: str, size: int) -> None:
    head, unit = ENDLESS[kind]
    text = head + unit * (8_000 // len(unit))
    for format in ROWS:
        once, twice = work(format, text[:4_000], size), work(format, text, size)
        assert twice <= 2.6 * once, (format.names[0], once, twice)

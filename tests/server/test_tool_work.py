"""Tool parsers do work that grows with the text: twice the text is twice the work, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cadence.entrypoints.server.chat.tools.arguments import ArgumentsStream
from cadence.entrypoints.server.chat.tools.call_object import CallObject
from cadence.entrypoints.server.chat.tools.format import ToolFormat
from cadence.entrypoints.server.chat.tools.formats.registry import ROWS
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.json_scanner import JsonScanner
from cadence.entrypoints.server.chat.tools.schema import Schemas
from cadence.entrypoints.server.chat.tools.stream import ToolStream
from cadence.entrypoints.server.chat.tools.tags import TagCall
from cadence.entrypoints.server.chat.tools.written_values import MARK

PARAMETERS = {"type": "object", "properties": {"n": {"type": "object"}, "s": {"type": "string"}}}
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": PARAMETERS}}]
READERS = (ArgumentsStream, CallObject, JsonScanner, TagCall, ToolStream)  # what holds text
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
    "a string value": ("<tool_call>\n<function=f>\n<parameter=s>", "word "),
    "white space in a value": ("<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a", " "),
    "white space before a value": ("<tool_call>f\n<arg_key>s</arg_key>", " "),
    "white space before a parameter": ("<tool_call>\n<function=f>\n", " "),
    "white space in a block": ("<tool_call>", " "),
    "white space": ("", " "),
    "a long key": ('<tool_call>{"name": "f", "arguments": {"', "abc "),
    "a long other key": ('<tool_call>{"', "abc "),
    "a long name": ('<tool_call>{"name": "', "abc "),
    "a number": ('<tool_call>{"name": "f", "arguments": {"a": ', "12345"),
    "arguments before the name": ('<tool_call>{"arguments": {"a": "', "abc "),
    "named arguments": ("[TOOL_CALLS]f{", '"abc'),
    "white space before named arguments": ("<function=f>", " "),
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


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[characters of all text that readers have made and kept, or joined]"""
    count, joined = [0], HeldText.joined

    def kept(reader: object, name: str, value: object) -> None:
        count[0] += len(value) if isinstance(value, str) else 0
        object.__setattr__(reader, name, value)

    def counted_join(held: HeldText) -> str:
        text = joined(held)
        count[0] += len(text)
        return text

    for reader in READERS:
        monkeypatch.setattr(reader, "__setattr__", kept, raising=False)
    monkeypatch.setattr(HeldText, "joined", counted_join)
    return count


def work(format: ToolFormat, text: str, size: int) -> int:
    stream = CountedStream(format, Schemas(TOOLS))
    for at in range(0, len(text), size):
        stream.push(text[at : at + size])
    stream.finish()
    return stream.looked_at


def take(count: list[int]) -> int:
    taken, count[0] = count[0], 0
    return taken


@pytest.mark.parametrize("size", [16, 1 << 20], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_twice_the_text_is_twice_the_work(kind: str, size: int, copied: list[int]) -> None:
    head, unit = ENDLESS[kind]
    text = head + unit * (8_000 // len(unit))
    for format in ROWS:
        once, copied_once = work(format, text[:4_000], size), take(copied)
        twice, copied_twice = work(format, text, size), take(copied)
        assert twice <= 2.6 * once, (format.names[0], once, twice)
        assert copied_twice <= 2.6 * copied_once, (format.names[0], copied_once, copied_twice)

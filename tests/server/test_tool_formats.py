"""Every tool format: what its models write is read back, wherever it is cut, and half a call is never one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.entrypoints.server.chat.answer_parser import CallsFirst
from cadence.entrypoints.server.chat.reasoning import Thought, reasoning_parser, think_format
from cadence.entrypoints.server.chat.reasoning_formats import FORMATS as ROWS_OF_REASONING
from cadence.entrypoints.server.chat.tools.base import (
    CallArguments,
    CallBroken,
    CallStart,
    Text,
    ToolParser,
    WholeCalls,
)
from cadence.entrypoints.server.chat.tools.formats.registry import FORMATS, make_tool_parser
from cadence.entrypoints.server.chat.tools.formats.registry import ROWS as ROWS_OF_TOOLS
from tests.helpers.wide import examples
from tests.server.tool_writers import WRITERS, Call

PROPERTIES: dict[str, Any] = {
    "city": {"type": "string"},
    "days": {"type": "integer"},
    "price": {"type": "number"},
    "exact": {"type": "boolean"},
    "notes": {"type": "array", "items": {"type": "string"}},
    "where": {
        "type": "object",
        "properties": {
            "lat": {"type": "number"},
            "place": {"type": "object", "properties": {"id": {"type": "integer"}}},
        },
    },
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": PROPERTIES}}}
    for name in ("get_weather", "book_trip", "refresh")
]
SCENARIOS: dict[str, list[Call]] = {
    "one": [("get_weather", {"city": "Oslo"})],
    "types": [("book_trip", {"city": "Rome", "days": 3, "price": 9.5, "exact": True})],
    "nested": [("book_trip", {"notes": ["a", "b, c"], "where": {"lat": 1.5, "place": {"id": 7}}, "days": -2})],
    "unicode": [("get_weather", {"city": "Zürich 東京 😀"})],
    "two": [("get_weather", {"city": "Oslo"}), ("book_trip", {"days": 2})],
    "parallel": [("get_weather", {"city": "Oslo"}), ("book_trip", {"days": 2}), ("get_weather", {"city": "Bergen"})],
    "no arguments": [("refresh", {})],
    "some without": [("refresh", {}), ("get_weather", {"city": "Oslo"})],
}
PREFIX = "Let me look.\n"
ROWS = sorted({format.names[0] for format in FORMATS.values()})  # other names of the same row need no test of their own


def read(parser: ToolParser, parts: Sequence[str]) -> tuple[str, list[list[str]], int]:
    """All the text, the calls as [name, JSON text], and how many of them broke."""
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    text, calls, broken = "", [], 0
    for piece in pieces:
        if isinstance(piece, Text):
            text += piece.text
        elif isinstance(piece, CallStart):
            assert piece.call == len(calls) + broken * isinstance(parser, WholeCalls)
            calls.append([piece.name, ""])
        elif isinstance(piece, CallArguments):
            calls[-1][1] += piece.json_text
        else:
            broken += isinstance(piece, CallBroken)
    return text, calls, broken


def streamed(name: str, parts: Sequence[str]) -> tuple[str, list[list[str]], int]:
    return read(make_tool_parser(name, TOOLS), parts)


def parsed(calls: Sequence[Sequence[str]]) -> list[Call]:
    return [(name, json.loads(text)) for name, text in calls]


def test_every_format_is_tested() -> None:
    assert set(WRITERS) == set(FORMATS)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", WRITERS)
def test_calls_are_read_back(name: str, scenario: str) -> None:
    calls = SCENARIOS[scenario]
    text = WRITERS[name](calls)
    said, found, broken = streamed(name, [text])
    assert (said, parsed(found), broken) == ("", calls, 0)


@pytest.mark.parametrize("scenario", ["types", "two"])
@pytest.mark.parametrize("name", ROWS)
def test_it_does_not_matter_where_the_text_is_cut(name: str, scenario: str) -> None:
    text = PREFIX + WRITERS[name](SCENARIOS[scenario])
    whole = streamed(name, [text])
    assert whole[0].strip() == PREFIX.strip() and parsed(whole[1]) == SCENARIOS[scenario]
    assert streamed(name, list(text)) == whole
    for at in range(1, len(text)):
        assert streamed(name, [text[:at], text[at:]]) == whole, at


@pytest.mark.parametrize("name", ROWS)
def test_half_a_call_is_none(name: str) -> None:
    """The text ends anywhere: a whole answer has the calls that came whole, and all the rest as text; a stream that had
    begun a call leaves it as JSON that does not parse."""
    calls = SCENARIOS["two"]
    text = WRITERS[name](calls)
    for end in range(1, len(text)):
        said, found, _ = read(WholeCalls(make_tool_parser(name, TOOLS)), [text[:end]])
        assert parsed(found) == calls[: len(found)], end
        if not found:
            assert said.rstrip() == text[:end].rstrip()
        _, found, broken = streamed(name, [text[:end]])
        for name_, arguments in found[: len(found) - broken]:
            assert (name_, json.loads(arguments)) in calls, end
        for _, arguments in found[len(found) - broken :]:
            with pytest.raises(ValueError):
                json.loads(arguments)


@pytest.mark.parametrize("name", ROWS)
def test_text_around_calls(name: str) -> None:
    first, second = WRITERS[name](SCENARIOS["one"]), WRITERS[name](SCENARIOS["no arguments"])
    said, found, _ = streamed(name, [f"One moment. {first}\nAnd now {second}"])
    assert parsed(found) == [*SCENARIOS["one"], *SCENARIOS["no arguments"]]
    assert " ".join(said.split()) == ("One moment." if FORMATS[name].silent else "One moment. And now")


@pytest.mark.parametrize("name", ROWS)
def test_text_without_calls_is_not_touched(name: str) -> None:
    said = "Use a[0] < b > {c}: `<tag>`, [link](url), 3 | 4, call(x) and f(1).\n\n - done "
    parser = make_tool_parser(name, TOOLS)
    assert "".join(piece.text for piece in parser.push("Hello. The answer is 4") if isinstance(piece, Text)) == (
        "Hello. The answer is 4"
    )
    assert streamed(name, [said]) == (said, [], 0) == streamed(name, list(said))


@pytest.mark.parametrize("name", [name for name in ROWS if FORMATS[name].ends_thinking])
def test_a_call_ends_thoughts_that_were_not_closed(name: str) -> None:
    text = "<think>I should look.\n" + WRITERS[name](SCENARIOS["one"]) + "</think>"
    for parts in ([text], list(text)):
        parser = CallsFirst(reasoning_parser(think_format("qwen3")), make_tool_parser(name, TOOLS))
        pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
        assert "".join(piece.text for piece in pieces if isinstance(piece, Thought)) == "I should look."
        assert "".join(piece.text for piece in pieces if isinstance(piece, Text)).strip() == ""
        assert [piece.name for piece in pieces if isinstance(piece, CallStart)] == ["get_weather"]


@pytest.mark.parametrize("name", [name for name in ROWS if FORMATS[name].ends_thinking])
def test_thoughts_about_markers_stay_thoughts(name: str) -> None:
    marker = FORMATS[name].marks[0]
    text = f"<think>I would write {marker} there.</think>Yes."
    for parts in ([text], list(text)):
        parser = CallsFirst(reasoning_parser(think_format("qwen3")), make_tool_parser(name, TOOLS))
        pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
        assert "".join(piece.text for piece in pieces if isinstance(piece, Thought)) == f"I would write {marker} there."
        assert "".join(piece.text for piece in pieces if isinstance(piece, Text)) == "Yes."


# Characters that formats without escapes can carry between their markers.
words = st.text("aé東😀 .,:;=/_-", min_size=1, max_size=12).map(str.strip).filter(bool)
arguments = st.fixed_dictionaries(
    {}, optional={
        "city": words, "days": st.integers(-999, 999), "exact": st.booleans(),
        "notes": st.lists(words, min_size=1, max_size=3), "where": st.fixed_dictionaries({"lat": st.integers(0, 9)}),
    },
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(ROWS), args=st.lists(arguments, min_size=1, max_size=3), data=st.data())
def test_any_calls_come_through_however_cut(name: str, args: list[dict[str, Any]], data: st.DataObject) -> None:
    calls: list[Call] = [("get_weather", entry) for entry in args]
    text = WRITERS[name](calls)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    said, found, broken = streamed(name, parts)
    assert (said.strip(), parsed(found), broken) == ("", calls, 0)


MARKERS = sorted({mark for format in FORMATS.values() for mark in format.all_marks if mark})
noise = st.lists(
    st.sampled_from(
        [*MARKERS, *'{}[]():,;="\n <>', "name", "word", '{"name": "f", "arguments": {', '"x"', "f(a=1)", "1"]
    ),
    max_size=14,
).map("".join)


@examples(80, 600)
@given(name=st.sampled_from(ROWS), text=noise, data=st.data())
def test_nonsense_means_the_same_however_cut(name: str, text: str, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert streamed(name, parts) == streamed(name, [text])


@settings(max_examples=100, deadline=None)
@given(name=st.sampled_from(ROWS), text=noise)
def test_no_character_is_lost_where_there_is_no_call(name: str, text: str) -> None:
    said, found, _ = read(WholeCalls(make_tool_parser(name, TOOLS)), [text])
    assert found or said.rstrip() == text.rstrip()


def test_the_documents_name_every_format() -> None:
    page = (Path(__file__).parents[2] / "docs" / "using" / "tools.md").read_text(encoding="utf-8")
    for row in (*ROWS_OF_TOOLS, *ROWS_OF_REASONING):
        assert f"| {', '.join(f'`{name}`' for name in row.names)} | {row.models} |" in page

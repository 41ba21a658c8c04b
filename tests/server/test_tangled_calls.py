"""Calls in which something stands again and again where it does not belong: the regular expressions that read them take
time that grows with the text, in every format."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cadence.entrypoints.server.chat.tools.formats.in_json import HARMONY_HEADER
from cadence.entrypoints.server.chat.tools.formats.registry import tool_format, tool_parser
from cadence.entrypoints.server.chat.tools.pythonic import read_calls
from cadence.entrypoints.server.chat.tools.schema import Schemas
from tests.helpers.processor_time import at_most
from tests.helpers.wide import examples
from tests.server.test_tool_work import TOOLS
from tests.server.tool_writers import WRITERS

LENGTH = 48_000  # characters: a few milliseconds, or more than a minute where each is looked at for each
HEADER = 330  # a header has fewer than 400 with its marks
MOST_S = 5.0  # of the processor
UNITS = (" ", "\n", "\x0b", "'", '"', "\\'", '\\"', "\\", "a", "0", "_", "-", ".", "a.", ",", ":", "=", "[", "{", "(",
         "<", "<a", ">", "a ", " a", "'a", "''", '"" ', "f(", "1,")  # fmt: skip
TAILS = ("", "\n", "<", "\x01", "}", ")", "x", '"')
CALLS = {name: write([("f", {"s": "x", "n": {"a": 1}})]) for name, write in sorted(WRITERS.items())}


def after(name: str, part: str) -> int:
    return CALLS[name].index(part) + len(part)


def read(name: str, text: str) -> None:
    for size in (len(text), 16):
        parser = tool_parser(tool_format(name), Schemas(TOOLS))
        with at_most(MOST_S, (name, text[:40], text[-40:])):
            for at in range(0, len(text), size):
                parser.push(text[at : at + size])
            parser.finish()


@examples(40, 800)
@given(st.sampled_from(list(CALLS)), st.integers(0, 10**6), st.sampled_from(UNITS), st.sampled_from(TAILS))
@example("gemma4", after("gemma4", "f{"), "\x0b", "}")
@example("olmo3", after("olmo3", "\n"), "\\'", "\n")
@example("deepseek_v31", after("deepseek_v31", "call▁begin｜>"), " ", "<")
@example("openai", after("openai", "functions.f"), " ", "\x01")
def test_what_stands_again_and_again_in_a_call(name: str, place: int, unit: str, tail: str) -> None:
    call = CALLS[name]
    at = place % (len(call) + 1)
    read(name, call[:at] + unit * (LENGTH // len(unit)) + tail + call[at:])
    header = call[:at] + unit * (HEADER // len(unit)) + tail + call[at:]
    read(name, header * (LENGTH // len(header)))


@pytest.mark.parametrize("spaces", ["to=f" + " " * HEADER + "\x01", "to=f" + " " * 180 + "json" + " " * 180 + "x"])
def test_white_space_in_a_header_is_read_once(spaces: str) -> None:
    with at_most(MOST_S):
        for _ in range(200):
            assert HARMONY_HEADER.fullmatch(spaces) is None


def test_white_space_is_no_part_of_names_and_keys() -> None:
    text = WRITERS["deepseek_v31"]([(" get time \n", {"a": 1})])
    (call, *_) = tool_parser(tool_format("deepseek_v31"), Schemas(TOOLS)).push(text)
    assert call.name == "get time"
    spaced = '<|tool_call>call:f{ s : <|"|>x<|"|>,\x0bn :{ a b : 1}}<tool_call|>'
    parser = tool_parser(tool_format("gemma4"), Schemas(TOOLS))
    pieces = [*parser.push(spaced), *parser.finish()]
    assert pieces[1].json_text == '{"s": "x", "n": {"a b": 1}}'


@pytest.mark.parametrize("quote", "'\"")
def test_escapes_outside_strings_open_none(quote: str) -> None:
    with at_most(MOST_S):
        assert read_calls("[f(a=" + f"\\{quote}" * LENGTH + ")]") == []


def test_strings_over_several_lines_are_read() -> None:
    assert read_calls('[f(a=\'x\ny\', b="\t\\"", c=007)]') == [("f", {"a": "x\ny", "b": '\t"', "c": 7})]

"""Thoughts and answers, told apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cadence.core.errors import ConfigError
from cadence.entrypoints.openai.reasoning import Thought, make_reasoning_parser, reasoning_parser_names


def run(name: str, parts: list[str], opened: bool = False) -> tuple[str, str]:
    parser = make_reasoning_parser(name, "<think>\n" if opened else "")
    pieces = [piece for part in parts for piece in parser.push(part)] + parser.finish()
    thoughts = "".join(piece.text for piece in pieces if isinstance(piece, Thought))
    return thoughts, "".join(piece.text for piece in pieces if not isinstance(piece, Thought))


@pytest.mark.parametrize(
    ("name", "text", "thoughts", "answer"),
    [
        ("deepseek_r1", "<think>\nI see.\n\nSo.\n</think>\n\nYes.", "I see.\n\nSo.", "Yes."),
        ("deepseek_r1", "I see.</think>Yes.", "I see.", "Yes."),
        ("deepseek_r1", "cut off whi", "cut off whi", ""),
        ("deepseek_r1", "a < b </thin", "a < b </thin", ""),
        ("deepseek_r1", "<think></think>Yes.", "", "Yes."),
        ("qwen3", "<think>\n\n</think>\n\nYes.", "", "Yes."),
        ("qwen3", "<think>Hm</think>Yes <think>no</think>", "Hm", "Yes <think>no</think>"),
        ("qwen3", "Just yes.", "", "Just yes."),
        ("qwen3", " <thinking> is fun", "", " <thinking> is fun"),
        ("qwen3", "<thi", "", "<thi"),
        ("", "<think>a</think>b", "", "<think>a</think>b"),
    ],
)
def test_think_tags(name: str, text: str, thoughts: str, answer: str) -> None:
    assert run(name, [text]) == run(name, list(text)) == (thoughts, answer)


def test_the_tag_may_stand_in_the_prompt() -> None:
    assert run("qwen3", ["Hm\n</think>", "\nYes"], opened=True) == ("Hm", "Yes")


def test_thoughts_are_not_held_back() -> None:
    assert make_reasoning_parser("deepseek_r1").push("I see a") == [Thought("I see a")]


FRAGMENTS = st.sampled_from(["<think>", "</think>", "<", "</", "think>", " ", "\n", "word", "é", "<thi"])
TEXTS = st.lists(FRAGMENTS, max_size=10).map("".join)


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(reasoning_parser_names()), TEXTS, st.booleans(), st.data())
def test_any_cut_means_the_same(name: str, text: str, opened: bool, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    parts = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)])]
    assert run(name, parts, opened) == run(name, [text], opened)


def test_names() -> None:
    with pytest.raises(ConfigError, match="reasoning_parser must be one of"):
        make_reasoning_parser("nope")

"""Telling thoughts from answers, and what a choice keeps of both, is work that grows with the text: twice the text is
twice the work, in whatever pieces it comes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cadence.core.outputs import CompletionOutput, Logprob
from cadence.entrypoints.server.chat.answer_parser import AnswerPiece
from cadence.entrypoints.server.chat.choice import ParsedChoice
from cadence.entrypoints.server.chat.reasoning import FORMATS, ThinkStream, Thought, think_format
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.base import Text
from cadence.entrypoints.server.chat.tools.held_text import HeldText

ROWS = sorted({think_format(name) for name in FORMATS if think_format(name).open}, key=lambda row: row.names)
LENGTH = 8_000  # characters
# What is said again and again: at the start, or after the first mark of the kind.
ENDLESS: dict[str, tuple[Callable[[ThinkFormat], str], Callable[[ThinkFormat], str]]] = {
    "white space": (lambda row: "", lambda row: " "),
    "white space in a thought": (lambda row: row.open[0] + "Hm", lambda row: " "),
    "white space in an answer": (lambda row: row.open[0] + "Hm" + row.close[0] + "Yes", lambda row: " "),
    "a thought": (lambda row: row.open[0], lambda row: "word "),
    "an answer": (lambda row: row.open[0] + "Hm" + row.close[0], lambda row: "word "),
    "openings": (lambda row: "", lambda row: row.open[0]),
    "turns": (lambda row: "", lambda row: f"{row.open[0]}a{row.close[0]} b "),
    "markers": (lambda row: "Yes", lambda row: "".join(row.marks)),
    "openings of markers": (lambda row: row.open[0], lambda row: "".join(mark[:-1] for mark in row.marks)),
}


class CountedThinkStream(ThinkStream):
    """Counts the characters that each state has before it, each time that it is asked."""

    looked_at = 0
    _asked: Callable[[], bool]

    @property
    def _read(self) -> Callable[[], bool]:
        self.looked_at += len(self.rest) + 1
        return self._asked

    @_read.setter
    def _read(self, state: Callable[[], bool]) -> None:
        self._asked = state


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """[characters and entries of all that was made and kept, or joined]"""
    count, joined = [0], HeldText.joined

    def kept(owner: object, name: str, value: object) -> None:
        count[0] += len(value) if isinstance(value, str | list) else 0
        object.__setattr__(owner, name, value)

    def counted_join(held: HeldText) -> str:
        text = joined(held)
        count[0] += len(text)
        return text

    for owner in (ThinkStream, ParsedChoice):
        monkeypatch.setattr(owner, "__setattr__", kept, raising=False)
    monkeypatch.setattr(HeldText, "joined", counted_join)
    return count


def take(count: list[int]) -> int:
    taken, count[0] = count[0], 0
    return taken


def cut(text: str, size: int) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]


def looked_at(row: ThinkFormat, text: str, size: int) -> int:
    stream = CountedThinkStream(row, opened=False)
    for part in cut(text, size):
        stream.push(part)
    stream.finish()
    return stream.looked_at


@pytest.mark.parametrize("size", [5, 1 << 20], ids=["streamed", "whole"])
@pytest.mark.parametrize("kind", ENDLESS)
def test_twice_the_text_is_twice_the_work(kind: str, size: int, copied: list[int]) -> None:
    for row in ROWS:
        head, unit = (part(row) for part in ENDLESS[kind])
        text = head + unit * (LENGTH // len(unit))
        once, copied_once = looked_at(row, text[: len(text) // 2], size), take(copied)
        twice, copied_twice = looked_at(row, text, size), take(copied)
        assert twice <= 2.6 * once, (row.names[0], once, twice)
        assert copied_twice <= 2.6 * copied_once, (row.names[0], copied_once, copied_twice)


class Saying:
    """All text is of one kind."""

    def __init__(self, kind: type[Text] | type[Thought]) -> None:
        self._kind = kind

    def push(self, text: str) -> list[AnswerPiece]:
        return [self._kind(text)]

    def finish(self) -> list[AnswerPiece]:
        return []


@pytest.mark.parametrize(("kind", "demanded"), [(Thought, ""), (Text, "required"), (Text, "f")])
def test_a_choice_copies_what_it_keeps_once(kind: type[Text] | type[Thought], demanded: str, copied: list[int]) -> None:
    def work(length: int) -> int:
        choice = ParsedChoice(0, Saying(kind), demanded, lambda: "id")
        for number, part in enumerate(parts := cut("word " * (length // 5), 5), 1):
            end = "length" if number == len(parts) else None
            logprobs = [{7: Logprob(-1.0)}]
            events = choice.read(CompletionOutput(0, part, [7], logprobs=logprobs, finish_reason=end))
        assert choice.reasoning or events[0].text == "word " * (length // 5)
        return take(copied)

    once = work(LENGTH // 2)
    assert work(LENGTH) <= 2.6 * once

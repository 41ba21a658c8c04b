"""Telling a model's thoughts from its answer, however the text is cut."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from cadence.core.errors import ConfigError
from cadence.entrypoints.server.chat.reasoning_formats import FORMATS as ROWS
from cadence.entrypoints.server.chat.reasoning_formats import ThinkFormat
from cadence.entrypoints.server.chat.tools.base import Text
from cadence.entrypoints.server.chat.tools.held_text import HeldText
from cadence.entrypoints.server.chat.tools.machine import Buffer, chunks, first_characters

FORMATS: Mapping[str, ThinkFormat] = MappingProxyType({name: row for row in ROWS for name in row.names})  # built in
MAX_SPAN = 200  # characters of a marker that has a text of its own


@dataclass(frozen=True, slots=True)
class Thought:
    text: str


ReasoningPiece = Thought | Text


class ReasoningParser(Protocol):
    def push(self, text: str) -> list[ReasoningPiece]: ...

    def finish(self) -> list[ReasoningPiece]:
        """The text has ended: what was held back."""
        ...

    def end(self) -> list[ReasoningPiece]:
        """A tool call has come: thoughts that were not closed are over. What was held back."""
        ...


class NullReasoningParser:
    """All text is the answer."""

    def push(self, text: str) -> list[ReasoningPiece]:
        return [Text(text)] if text else []

    def finish(self) -> list[ReasoningPiece]:
        return []

    def end(self) -> list[ReasoningPiece]:
        return []


class ThinkStream(Buffer):
    """Thoughts come first, if at all, unless the format has them anywhere. White space at the tags belongs to neither
    side, so it waits for what follows, apart from `rest`: that stays short, however much text comes.

    opened: the thoughts have begun before the first token."""

    def __init__(self, format: ThinkFormat, opened: bool) -> None:
        super().__init__()
        self._format = format
        self._opened = opened
        self._read: Callable[[], bool] = self._begin
        self._ends = (*format.close, *format.implied)
        self._inline = (*format.inline, *(span.open for span in format.spans if span.inline))
        spans = (span.open for span in format.spans)
        self._marks = (*format.drop, *format.inline, *spans, *(format.open if format.again else ()))
        self._spoke = False  # there was text of the answer
        self._glance = first_characters((*self._ends, *self._inline))
        self._in_thought = False  # the state is `_thought`
        self._in_answer = False  # … `_answer`
        self._stray = ""  # a closing tag that is still to come, and means nothing: a tool call has ended the thoughts
        self._gap = HeldText()  # white space of the answer that a marker may follow
        self._thought_gap = HeldText()  # white space of the thoughts that a tag may follow
        self._pieces: list[ReasoningPiece] = []

    def push(self, text: str) -> list[ReasoningPiece]:
        if self._is_plain(text):  # the path of most tokens
            return [Thought(self._thought_gap.take() + text) if self._in_thought else Text(self._gap.take() + text)]
        for chunk in chunks(text):
            self.rest += chunk
            self._run()
        return self._taken()

    def finish(self) -> list[ReasoningPiece]:
        self.final = True
        self._run()
        return self._taken()

    def end(self) -> list[ReasoningPiece]:
        if self._read in (self._answer, self._first_answer):
            return []
        pieces = self.finish()
        self._thought_gap.clear()
        self.final = False
        self._stray = self._format.close[0]
        self._marks = (*self._marks, self._stray)
        self._read, self._in_thought, self._in_answer = self._answer, False, True
        return pieces

    def _is_plain(self, text: str) -> bool:
        """Whether it can be told at a glance that this goes on as what came before."""
        if self._in_thought:
            return not self.rest and bool(text) and not text[-1].isspace() and not self._glance.search(text)
        return self._in_answer and not self._marks and bool(text)

    def _run(self) -> None:
        while (self.rest or (self.final and self._gap)) and self._read():
            pass

    def _taken(self) -> list[ReasoningPiece]:
        pieces, self._pieces = self._pieces, []
        return pieces

    def _begin(self) -> bool:
        """At the start: a tag, or what it stands before."""
        self._gap.add(self.skip(len(self.rest) - len(self.rest.lstrip())))
        known = (*self._format.open, *self._format.close)
        if self.could_be(*known):
            return False
        tag = max((tag for tag in known if self.rest.startswith(tag)), key=len, default="")
        self.skip(len(tag))
        if tag in self._format.close:
            self._read = self._first_answer
        else:
            self._read = self._first_thought if tag or self._opened else self._answer
        self._in_answer = self._read == self._answer
        if not self._in_answer:
            self._gap.clear()
        return True

    def _first_thought(self) -> bool:
        self.rest = self.rest.lstrip()
        if self.rest:
            self._read, self._in_thought = self._thought, True
        return bool(self.rest)

    def _thought(self) -> bool:
        at, tag = self.find(*self._ends, *self._inline)
        text = self.skip(at)
        words = text if tag in self._inline else text.rstrip()
        if words:
            self._pieces.append(Thought(self._thought_gap.take() + words))
        self._thought_gap.add(text[len(words) :])
        if tag in self._inline:
            return self._pass_over(tag, Thought)
        if not tag:
            return False
        self._thought_gap.clear()
        self.skip(len(tag) if tag in self._format.close else 0)
        self._read, self._in_thought = self._first_answer, False
        return True

    def _first_answer(self) -> bool:
        self.rest = self.rest.lstrip()
        if self.rest:
            self._read, self._in_answer = self._answer, True
        return bool(self.rest)

    def _answer(self) -> bool:
        if not self._marks:
            self._pieces.append(Text(self._gap.take() + self.skip(len(self.rest))))
            return False
        at, tag = self.find(*self._marks)
        self._say(self.skip(at))
        return bool(tag) and self._marked(tag)

    def _say(self, text: str) -> None:
        """White space waits for what follows it: at a marker it is dropped."""
        words = text.rstrip()
        if words:
            self._pieces.append(Text(self._gap.take() + (text if self.final else words)))
            self._spoke = True
        if self.final:
            self._gap.clear()
        else:
            self._gap.add(text[len(words) :])

    def _marked(self, tag: str) -> bool:
        """At a marker in the answer: thoughts begin again, or it is passed over. What stands after it is a text of
        its own: on a new line, unless the text before it ended with white space."""
        if tag in self._inline or (tag not in self._format.open and tag in [span.open for span in self._format.spans]):
            return self._pass_over(tag, Text)
        self.skip(len(tag))
        if tag == self._stray:
            self._stray, self._marks = "", self._marks[:-1]
        self._read, self._in_answer = (self._first_thought if tag in self._format.open else self._first_answer), False
        self._begin_text()
        return True

    def _begin_text(self) -> None:
        """The white space before a text that begins after a marker."""
        if not self._spoke:
            self._gap.clear()
        elif not self._gap:
            self._gap.add("\n")

    def _pass_over(self, tag: str, kind: type[Thought] | type[Text]) -> bool:
        """A marker inside a text, or one with a text of its own."""
        span = next((span for span in self._format.spans if span.open == tag), None)
        if span is None:
            self.skip(len(tag))
            return True
        end = self.rest.find(span.close, len(tag), MAX_SPAN)
        if end < 0 and not self.final and len(self.rest) < MAX_SPAN:
            return False
        if end < 0 or not span.inner.fullmatch(self.rest, len(tag), end):
            self._pieces.append(kind(self._gap.take() + self.skip(len(tag))))
            return True
        self.skip(end + len(span.close))
        if not span.inline:
            self._read, self._in_answer = self._first_answer, False
            self._begin_text()
        return True


class AppendThink:
    """The thoughts stay in the answer; the tag that the prompt ended with is put back before them."""

    def __init__(self, tag: str) -> None:
        self._tag = tag

    def push(self, text: str) -> list[ReasoningPiece]:
        tag, self._tag = self._tag, ""
        return [Text(tag + text)] if tag + text else []

    def finish(self) -> list[ReasoningPiece]:
        return []

    def end(self) -> list[ReasoningPiece]:
        return []


def reasoning_parser(format: ThinkFormat | None, prompt: str = "") -> ReasoningParser:
    """For an answer to `prompt`, whose end says whether the thoughts have begun, or are over, before the first token.
    None = all text is the answer."""
    if format is None or not format.open:
        return NullReasoningParser()
    if format.put_back:
        return AppendThink(format.put_back)
    return ThinkStream(format, format.begun(prompt))


def think_format(name: str, formats: Mapping[str, ThinkFormat] = FORMATS) -> ThinkFormat:
    if name not in formats:
        names = ", ".join(sorted(formats))
        raise ConfigError(f"reasoning_parser must be one of auto, {names}; got {name!r}.", "reasoning_parser")
    return formats[name]

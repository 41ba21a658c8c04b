"""One of a chat's n answers: text comes in, and comes out told apart into reasoning, text and tool calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from cadence.core.outputs import CompletionOutput, PositionLogprobs
from cadence.entrypoints.server.chat.answer_parser import AnswerParser, AnswerPiece
from cadence.entrypoints.server.chat.events import (
    MISSING_CALL,
    ChatEvent,
    ChoiceEnd,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
)
from cadence.entrypoints.server.chat.reasoning import Thought
from cadence.entrypoints.server.chat.tools.base import CallArguments, CallStart, Text
from cadence.entrypoints.server.chat.tools.held_text import HeldText


class Choice(Protocol):
    @property
    def reasoning(self) -> str:
        """All of it so far."""
        ...

    def read(self, output: CompletionOutput) -> list[ChatEvent]: ...


class PlainChoice:
    """Neither reasoning nor tools: the path of most tokens."""

    reasoning = ""

    def read(self, output: CompletionOutput) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        if output.token_ids or output.text:
            events.append(TextDelta(output.index, output.text, output.token_ids, output.logprobs, output.drafted))
        if output.finish_reason is not None:
            events.append(ChoiceEnd(output.index, output.finish_reason, output.stop_reason, output.failure))
        return events


class ParsedChoice:
    """Tokens and their logprobs travel with the first event that comes of their text."""

    def __init__(self, index: int, parser: AnswerParser, demanded: str, new_id: Callable[[], str]) -> None:
        """`demanded`: "" when the model is free to call, "required", or the name of the function it must call.
        `new_id`: an id for a call to which the model gives none."""
        self._reasoning = HeldText()
        self._index = index
        self._parser = parser
        self._demanded = demanded
        self._new_id = new_id
        self._calls: dict[int, int] = {}  # the parser's numbers of the calls that were let through -> ours
        self._call_ids: list[str] = []
        self._held = HeldText()  # text beside a demanded call: shown only once the answer is complete
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] | None = None
        self._drafted: list[int] = []  # places in _token_ids

    @property
    def reasoning(self) -> str:
        return self._reasoning.joined()

    def read(self, output: CompletionOutput) -> list[ChatEvent]:
        self._drafted += [len(self._token_ids) + place for place in output.drafted]
        self._token_ids.extend(output.token_ids)
        if output.logprobs is not None:
            if self._logprobs is None:
                self._logprobs = []
            self._logprobs.extend(output.logprobs)
        events = self._events(self._parser.push(output.text))
        if output.finish_reason is not None:
            events += self._events(self._parser.finish())
            events += self._close(output.finish_reason, output)
        return events

    def _events(self, pieces: Sequence[AnswerPiece]) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        for piece in pieces:
            if isinstance(piece, Text):
                events += self._text(piece.text)
            elif isinstance(piece, Thought):
                self._reasoning.add(piece.text)
                events.append(self._reasoning_delta(piece.text))
            elif isinstance(piece, CallStart):
                events += self._start(piece)
            elif isinstance(piece, CallArguments):
                events += self._arguments(piece)
        return events

    def _text(self, text: str) -> list[ChatEvent]:
        if self._demanded:
            self._held.add(text)
            return []
        return [self._text_delta(text)]

    def _start(self, start: CallStart) -> list[ChatEvent]:
        if self._demanded not in ("", "required", start.name):
            return []
        number = self._calls[start.call] = len(self._calls)
        self._call_ids.append(start.id or self._new_id())
        return [self._call_delta(number, name=start.name)]

    def _arguments(self, piece: CallArguments) -> list[ChatEvent]:
        number = self._calls.get(piece.call)
        if number is None or not piece.json_text:
            return []
        return [self._call_delta(number, arguments=piece.json_text)]

    def _close(self, finish_reason: str, output: CompletionOutput) -> list[ChatEvent]:
        events: list[ChatEvent] = []
        held = self._held.take()
        if self._demanded and not self._calls:
            for number, (name, arguments) in enumerate(calls_in_json(held, self._demanded)):
                events += self._start(CallStart(number, name))
                events += self._arguments(CallArguments(number, arguments))
        if self._calls:
            held = ""  # beside calls that were demanded stands no text, nor half a call that was cut off
        if self._demanded and not self._calls and finish_reason == "stop":
            return [ChoiceEnd(self._index, MISSING_CALL)]
        if held.strip():
            events.append(self._text_delta(held))
        if self._token_ids:
            events.append(self._text_delta(""))
        if self._calls and finish_reason == "stop":
            finish_reason = "tool_calls"
        return [*events, ChoiceEnd(self._index, finish_reason, output.stop_reason, output.failure)]

    def _text_delta(self, text: str) -> TextDelta:
        tokens, logprobs, drafted = self._take_tokens()
        return TextDelta(index=self._index, text=text, token_ids=tokens, logprobs=logprobs, drafted=drafted)

    def _reasoning_delta(self, text: str) -> ReasoningDelta:
        tokens, logprobs, drafted = self._take_tokens()
        return ReasoningDelta(index=self._index, text=text, token_ids=tokens, logprobs=logprobs, drafted=drafted)

    def _call_delta(self, number: int, name: str = "", arguments: str = "") -> ToolCallDelta:
        tokens, logprobs, drafted = self._take_tokens()
        return ToolCallDelta(
            index=self._index,
            call=number,
            call_id=self._call_ids[number],
            name=name,
            arguments=arguments,
            token_ids=tokens,
            logprobs=logprobs,
            drafted=drafted,
        )

    def _take_tokens(self) -> tuple[Sequence[int], Sequence[PositionLogprobs] | None, Sequence[int]]:
        """Those that no event has carried yet: ids, logprobs, and which were drafts."""
        tokens, logprobs, drafted = self._token_ids, self._logprobs, self._drafted
        self._token_ids, self._logprobs, self._drafted = [], None, []
        return tokens, logprobs, drafted


def calls_in_json(text: str, demanded: str) -> list[tuple[str, str]]:
    """Calls in an answer that is nothing but JSON: `{"name", "arguments"}` once or in a list, or, where one function
    is demanded by name, its arguments alone."""
    try:
        return _calls(json.loads(text), demanded)
    except (ValueError, RecursionError, OverflowError):  # no JSON, or none that can be written again
        return []


def _calls(content: object, demanded: str) -> list[tuple[str, str]]:
    calls = []
    for entry in content if isinstance(content, list) else [content]:
        if not isinstance(entry, dict):
            return []
        name, arguments = entry.get("name"), entry.get("arguments", entry.get("parameters"))
        if isinstance(name, str) and name.isprintable() and isinstance(arguments, dict):
            calls.append((name, msgspec.json.encode(arguments).decode()))
        elif demanded != "required":
            calls.append((demanded, msgspec.json.encode(entry).decode()))
        else:
            return []
    return calls

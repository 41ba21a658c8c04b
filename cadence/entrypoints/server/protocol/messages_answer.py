"""A message in Anthropic's words as it comes into being: chat events become content blocks and stream events."""

from __future__ import annotations

from typing import Any

import msgspec

from cadence.entrypoints.server.chat.events import (
    ChatEvent,
    ChoiceEnd,
    PromptRead,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from cadence.entrypoints.server.http.errors import ErrorReply
from cadence.entrypoints.server.http.stream import encode_json

PATH = "/v1/messages"
StreamEvent = dict[str, Any]

_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use"}
_FIELDS = {"text": "text", "thinking": "thinking"}  # block -> where its text lies


class MessageAnswer:
    """`read` takes events and gives the stream's; `whole` is the message once it is complete."""

    def __init__(self, message_id: str, model: str, parallel_calls: bool) -> None:
        self._id = message_id
        self._model = model
        self._parallel = parallel_calls
        self._blocks: list[dict[str, Any]] = []
        self._open = ""  # text, thinking, or a call's number while the last block grows; "" = nothing
        self._texts: list[str] = []  # what the open block has got so far
        self._stop_reason: str | None = None
        self._stop_sequence: str | None = None
        self._usage = _usage(Usage(0, 0, 0))

    def whole(self) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": list(self._blocks),
            "stop_reason": self._stop_reason,
            "stop_sequence": self._stop_sequence,
            "usage": self._usage,
        }

    def read(self, event: ChatEvent) -> list[StreamEvent]:
        if isinstance(event, TextDelta):
            return self._text("text", event.text) if event.text else []
        if isinstance(event, ReasoningDelta):
            return self._text("thinking", event.text) if event.text else []
        if isinstance(event, ToolCallDelta):
            return self._call(event) if self._parallel or event.call == 0 else []
        if isinstance(event, ChoiceEnd):
            return self._end(event)
        if isinstance(event, PromptRead):
            self._usage = _usage(Usage(len(event.prompt_token_ids), 0, 0))
            return [{"type": "message_start", "message": self.whole()}, {"type": "ping"}]
        self._usage = _usage(event)
        return []

    def finish(self) -> list[StreamEvent]:
        delta = {"stop_reason": self._stop_reason, "stop_sequence": self._stop_sequence}
        return [{"type": "message_delta", "delta": delta, "usage": self._usage}, {"type": "message_stop"}]

    def _end(self, event: ChoiceEnd) -> list[StreamEvent]:
        stopped_by = event.stop_reason if event.finish_reason == "stop" and isinstance(event.stop_reason, str) else None
        self._stop_sequence = stopped_by
        self._stop_reason = "stop_sequence" if stopped_by else _STOP_REASONS.get(event.finish_reason, "end_turn")
        return self._close()

    def _text(self, kind: str, text: str) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if self._open != kind:
            extra = {"signature": ""} if kind == "thinking" else {}
            events = [*self._close(), self._start(kind, {"type": kind, _FIELDS[kind]: "", **extra})]
        self._texts.append(text)
        return [*events, self._delta({"type": f"{kind}_delta", _FIELDS[kind]: text})]

    def _call(self, event: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if event.name:
            block = {"type": "tool_use", "id": event.call_id, "name": event.name, "input": {}}
            events = [*self._close(), self._start(str(event.call), block)]
        if event.arguments:
            self._texts.append(event.arguments)
            events.append(self._delta({"type": "input_json_delta", "partial_json": event.arguments}))
        return events

    def _start(self, kind: str, block: dict[str, Any]) -> StreamEvent:
        self._blocks.append(block)
        self._open, self._texts = kind, []
        return {"type": "content_block_start", "index": len(self._blocks) - 1, "content_block": block}

    def _delta(self, delta: dict[str, Any]) -> StreamEvent:
        return {"type": "content_block_delta", "index": len(self._blocks) - 1, "delta": delta}

    def _close(self) -> list[StreamEvent]:
        """The open block gets its content. Blocks are replaced, never changed: events may hold them."""
        if not self._open:
            return []
        kind, text, block = self._open, "".join(self._texts), self._blocks[-1]
        events = [self._delta({"type": "signature_delta", "signature": ""})] if kind == "thinking" else []
        self._blocks[-1] = {**block, _FIELDS[kind]: text} if kind in _FIELDS else _called(block, text)
        self._open = ""
        return [*events, {"type": "content_block_stop", "index": len(self._blocks) - 1}]


def _called(block: dict[str, Any], arguments: str) -> dict[str, Any]:
    """A call with its input. Arguments that are no JSON (1e999, half a surrogate pair, cut off) are shown as text: such
    a call must not be run."""
    try:
        parsed = msgspec.json.decode(arguments) if arguments else {}
    except (msgspec.DecodeError, RecursionError):
        return {"type": "text", "text": f"{block['name']}({arguments}"}
    return {**block, "input": parsed}


def write(events: list[StreamEvent]) -> bytes:
    return b"".join(b"event: " + e["type"].encode() + b"\ndata: " + encode_json(e) + b"\n\n" for e in events)


def write_error(reply: ErrorReply) -> bytes:
    return b"event: error\ndata: " + reply.content(PATH) + b"\n\n"


def _usage(usage: Usage) -> dict[str, Any]:
    """Anthropic counts tokens found in the cache apart from the others."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }

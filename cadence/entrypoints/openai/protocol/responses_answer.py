"""A response as it comes into being: chat events become output items, and the official stream events on the way."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any

from cadence.core.sampling_params import SamplingParams
from cadence.entrypoints.openai.errors import ErrorReply
from cadence.entrypoints.openai.events import ChatEvent, ChoiceEnd, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from cadence.entrypoints.openai.protocol.responses import ResponsesBody
from cadence.entrypoints.openai.stream import encode_json

StreamEvent = dict[str, Any]  # without its sequence number

_TEXT = "output_text"
_THOUGHT = "reasoning_text"


class ResponseAnswer:
    """`read` takes events and gives the stream's; `snapshot` is the response so far."""

    def __init__(self, response_id: str, model: str, body: ResponsesBody, params: SamplingParams) -> None:
        self.id = response_id
        self.status = "in_progress"
        self.output: list[dict[str, Any]] = []
        self._fixed = {"created_at": int(time.time()), "model": model, **_repeated(body, params)}
        self._parallel = body.parallel_tool_calls is not False
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, str] | None = None
        self._completed_at: int | None = None
        self._open = ""  # what the last item is while it grows: message, reasoning, a call's number; "" = nothing
        self._texts: list[str] = []  # what the open item has got so far

    def snapshot(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            **self._fixed,
            "status": self.status,
            "completed_at": self._completed_at,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "output": list(self.output),
            "usage": self._usage,
        }

    def begin(self) -> list[StreamEvent]:
        return [self._whole("response.created"), self._whole("response.in_progress")]

    def read(self, event: ChatEvent) -> list[StreamEvent]:
        if isinstance(event, TextDelta):
            return self._text("message", event.text) if event.text else []
        if isinstance(event, ReasoningDelta):
            return self._text("reasoning", event.text) if event.text else []
        if isinstance(event, ToolCallDelta):
            return self._call(event) if self._parallel or event.call == 0 else []
        if isinstance(event, ChoiceEnd):
            return self._end(event.finish_reason)
        if isinstance(event, Usage):
            self._usage = _usage(event)
        return []

    def finish(self) -> list[StreamEvent]:
        """The last event, which holds everything."""
        events = self._end("abort") if self.status == "in_progress" else []
        kind = {"completed": "response.completed", "failed": "response.failed"}
        return [*events, self._whole(kind.get(self.status, "response.incomplete"))]

    def fail(self, reply: ErrorReply) -> list[StreamEvent]:
        """An error in the middle: what was said stays."""
        events = self._close("incomplete")
        error = reply.body()["error"]
        self.status = "failed"
        self._error = {"code": "server_error", "message": error["message"]}
        told = {"type": "error", "code": error["code"], "message": error["message"], "param": error["param"]}
        return [*events, told, self._whole("response.failed")]

    def history(self) -> list[dict[str, Any]]:
        """The items that a later response may build on: those that are complete, and all that was said."""
        return [item for item in self.output if item["status"] == "completed" or item["type"] == "message"]

    def _whole(self, kind: str) -> StreamEvent:
        return {"type": kind, "response": self.snapshot()}

    def _end(self, finish_reason: str) -> list[StreamEvent]:
        whole = finish_reason in ("stop", "tool_calls")
        events = self._close("completed" if whole else "incomplete")
        if whole:
            self.status = "completed"
            self._completed_at = int(time.time())
        elif finish_reason == "length":
            self.status = "incomplete"
            self._incomplete = {"reason": "max_output_tokens"}
        else:
            self.status = "cancelled"
        return events

    def _text(self, kind: str, text: str) -> list[StreamEvent]:
        events = [] if self._open == kind else [*self._close("completed"), *self._open_text(kind)]
        self._texts.append(text)
        if kind == "message":
            return [*events, self._part(f"response.{_TEXT}.delta", delta=text, logprobs=[])]
        return [*events, self._part(f"response.{_THOUGHT}.delta", delta=text)]

    def _open_text(self, kind: str) -> list[StreamEvent]:
        if kind == "message":
            item = {"id": _id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
        else:
            item = {"id": _id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}
        added = self._add(kind, item)
        return [added, self._part("response.content_part.added", part=_content(kind, ""))]

    def _call(self, event: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if event.name:
            item = {"id": _id("fc"), "type": "function_call", "status": "in_progress", "call_id": event.call_id}
            events += self._close("completed")
            events.append(self._add(str(event.call), {**item, "name": event.name, "arguments": ""}))
        if event.arguments:
            self._texts.append(event.arguments)
            events.append(self._of_item("response.function_call_arguments.delta", delta=event.arguments))
        return events

    def _add(self, kind: str, item: dict[str, Any]) -> StreamEvent:
        self.output.append(item)
        self._open, self._texts = kind, []
        return {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": item}

    def _close(self, status: str) -> list[StreamEvent]:
        """The open item gets its content and its status. Items are replaced, never changed: events may hold them."""
        if not self._open:
            return []
        kind, text = self._open, "".join(self._texts)
        item = {**self.output[-1], "status": status}
        if kind in ("message", "reasoning"):
            part = _content(kind, text)
            item["content"] = [part]
            done = f"response.{part['type']}.done"
            extra: dict[str, Any] = {"logprobs": []} if kind == "message" else {}
            events = [self._part(done, text=text, **extra), self._part("response.content_part.done", part=part)]
        else:
            item["arguments"] = text
            name = item["name"]
            events = [self._of_item("response.function_call_arguments.done", name=name, arguments=text)]
        self._open = ""
        self.output[-1] = item
        last = {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}
        return [*events, last]

    def _of_item(self, kind: str, **fields: Any) -> StreamEvent:
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return {"type": kind, **place, **fields}

    def _part(self, kind: str, **fields: Any) -> StreamEvent:
        return self._of_item(kind, content_index=0, **fields)


class EventWriter:
    """Stream events as bytes, numbered."""

    def __init__(self) -> None:
        self._next = 0

    def write(self, events: list[StreamEvent]) -> bytes:
        chunks = []
        for event in events:
            numbered = {"type": event["type"], "sequence_number": self._next, **event}
            self._next += 1
            chunks.append(b"event: " + event["type"].encode() + b"\ndata: " + encode_json(numbered) + b"\n\n")
        return b"".join(chunks)


def _content(kind: str, text: str) -> dict[str, Any]:
    if kind == "message":
        return {"type": _TEXT, "text": text, "annotations": [], "logprobs": []}
    return {"type": _THOUGHT, "text": text}


def _repeated(body: ResponsesBody, params: SamplingParams) -> dict[str, Any]:
    """What a response repeats of its request."""
    reasoning = body.reasoning
    return {
        "background": False,
        "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens,
        "max_tool_calls": None,
        "metadata": body.metadata or {},
        "parallel_tool_calls": body.parallel_tool_calls is not False,
        "previous_response_id": body.previous_response_id,
        "reasoning": {"effort": reasoning.effort if reasoning else None, "summary": None},
        "service_tier": "default",
        "store": body.store is not False,
        "temperature": params.temperature,
        "text": {"format": {"type": "text"}},
        "tool_choice": body.tool_choice or ("auto" if body.tools else "none"),
        "tools": [_shown_tool(tool) for tool in body.tools or ()],
        "top_p": params.top_p,
        "truncation": "disabled",
        "user": body.user,
    }


def _shown_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    return {"strict": None, "parameters": None, "description": None, **tool}


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _id(prefix: str) -> str:
    return f"{prefix}_{secrets.token_hex(16)}"

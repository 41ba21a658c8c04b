"""A response as it comes into being: chat events become output items, and the official stream events on the way."""

from __future__ import annotations

import hashlib
import time
from typing import Any

from cadence.entrypoints.server.chat.events import ChatEvent, ChoiceEnd, ReasoningDelta, TextDelta, ToolCallDelta, Usage
from cadence.entrypoints.server.http.errors import ErrorReply
from cadence.entrypoints.server.protocol.responses.response_messages import seal_reasoning
from cadence.entrypoints.server.protocol.responses.response_raw import NoRawMessages, RawMessages
from cadence.entrypoints.server.protocol.responses.response_tools import custom_input
from cadence.entrypoints.server.protocol.responses.response_view import ResponseView, usage_of_response

StreamEvent = dict[str, Any]  # without its sequence number

_TEXT = "output_text"
_THOUGHT = "reasoning_text"
_ERROR_CODES = {400: "invalid_prompt", 429: "rate_limit_exceeded"}  # the API's words; all else is a server_error


class ResponseAnswer:
    """`read` takes events and gives the stream's; `snapshot` is the response so far."""

    def __init__(self, view: ResponseView, raw: RawMessages | NoRawMessages) -> None:
        self.id = view.id
        self.status = "queued" if view.fixed["background"] else "in_progress"
        self.output: list[dict[str, Any]] = []
        self.dropped_items = 0  # of the conversation, which was too long
        self._view = view
        self._raw = raw
        self._usage: dict[str, Any] | None = None
        self._error: dict[str, Any] | None = None
        self._incomplete: dict[str, str] | None = None
        self._completed_at: int | None = None
        self._open = ""  # what the last item is while it grows: message, reasoning, a call's number; "" = nothing
        self._texts: list[str] = []  # what the open item has got so far
        self._logprobs: list[dict[str, Any]] = []  # of the open item's tokens

    def snapshot(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            **self._view.fixed,
            "status": self.status,
            "completed_at": self._completed_at,
            "error": self._error,
            "incomplete_details": self._incomplete,
            "dropped_items": self.dropped_items,
            "output": list(self.output),
            "usage": self._usage,
            **self._raw.fields(),
        }

    @property
    def is_open(self) -> bool:
        return self.status in ("queued", "in_progress")

    def begin(self) -> list[StreamEvent]:
        second = "response.queued" if self.status == "queued" else "response.in_progress"
        return [self._whole("response.created"), self._whole(second)]

    def read(self, event: ChatEvent) -> list[StreamEvent]:
        if self.status == "queued":
            self.status = "in_progress"
            return [self._whole("response.in_progress"), *self.read(event)]
        self._raw.read(event)
        if isinstance(event, TextDelta):
            return self._said(event)
        if isinstance(event, ReasoningDelta):
            return self._text("reasoning", event.text, []) if event.text and self._view.tells_thoughts else []
        if isinstance(event, ToolCallDelta):
            return self._call(event) if self._view.parallel_calls or event.call == 0 else []
        if isinstance(event, ChoiceEnd):
            return self._end(event.finish_reason)
        if isinstance(event, Usage):
            self._usage = usage_of_response(event)
        return []

    def finish(self) -> list[StreamEvent]:
        """The last event, which holds everything."""
        events = self._end("abort") if self.is_open else []
        kind = {"completed": "response.completed", "failed": "response.failed"}
        return [*events, self._whole(kind.get(self.status, "response.incomplete"))]

    def fail(self, reply: ErrorReply) -> list[StreamEvent]:
        """An error in the middle: what was said stays."""
        events = self._close("incomplete")
        error = reply.body()["error"]
        self.status = "failed"
        self._error = {"code": _ERROR_CODES.get(reply.status, "server_error"), "message": error["message"]}
        told = {"type": "error", "code": error["reason"], "message": error["message"], "param": error["param"]}
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

    def _said(self, event: TextDelta) -> list[StreamEvent]:
        """Tokens that make no whole character yet have logprobs without text."""
        logprobs = self._view.logprobs(event.token_ids, event.logprobs)
        if event.text:
            return self._text("message", event.text, logprobs)
        if self._open == "message":
            self._logprobs += logprobs
        return []

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]]) -> list[StreamEvent]:
        events = [] if self._open == kind else [*self._close("completed"), *self._open_text(kind)]
        self._texts.append(text)
        self._logprobs += logprobs
        if kind == "message":
            return [*events, self._part(f"response.{_TEXT}.delta", delta=text, logprobs=logprobs)]
        return [*events, self._part(f"response.{_THOUGHT}.delta", delta=text)]

    def _open_text(self, kind: str) -> list[StreamEvent]:
        if kind == "message":
            item = {"id": self._id("msg"), "type": kind, "status": "in_progress", "role": "assistant", "content": []}
        else:
            item = {"id": self._id("rs"), "type": kind, "status": "in_progress", "summary": [], "content": []}
            if self._view.sealed:
                item["encrypted_content"] = None
        added = self._add(kind, item)
        return [added, self._part("response.content_part.added", part=_content(kind, "", []))]

    def _call(self, event: ToolCallDelta) -> list[StreamEvent]:
        events: list[StreamEvent] = []
        if event.name:
            events += [*self._close("completed"), self._add(str(event.call), self._new_call(event))]
        if event.arguments:
            self._texts.append(event.arguments)
            if self.output[-1]["type"] == "function_call":
                events.append(self._of_item("response.function_call_arguments.delta", delta=event.arguments))
        return events

    def _new_call(self, event: ToolCallDelta) -> dict[str, Any]:
        origin = self._view.tools.origin(event.name)
        custom = origin.kind == "custom_tool_call"
        item = {"id": self._id("ctc" if custom else "fc"), "type": origin.kind, "status": "in_progress"}
        item |= {"call_id": event.call_id, "name": origin.name, "input" if custom else "arguments": ""}
        return {**item, "namespace": origin.namespace} if origin.namespace else item

    def _add(self, kind: str, item: dict[str, Any]) -> StreamEvent:
        self.output.append(item)
        self._open, self._texts, self._logprobs = kind, [], []
        return {"type": "response.output_item.added", "output_index": len(self.output) - 1, "item": item}

    def _close(self, status: str) -> list[StreamEvent]:
        """The open item gets its content and its status. Items are replaced, never changed: events may hold them."""
        if not self._open:
            return []
        text = "".join(self._texts)
        item = {**self.output[-1], "status": status}
        if item["type"] in ("message", "reasoning"):
            events = self._close_text(item, text)
        elif item["type"] == "custom_tool_call":
            events = self._close_custom(item, custom_input(text))
        else:
            item["arguments"] = text
            name = item["name"]
            events = [self._of_item("response.function_call_arguments.done", name=name, arguments=text)]
        self._open = ""
        self.output[-1] = item
        last = {"type": "response.output_item.done", "output_index": len(self.output) - 1, "item": item}
        return [*events, last]

    def _close_text(self, item: dict[str, Any], text: str) -> list[StreamEvent]:
        part = _content(item["type"], text, self._logprobs)
        item["content"] = [part]
        extra: dict[str, Any] = {"logprobs": self._logprobs} if item["type"] == "message" else {}
        if "encrypted_content" in item:
            item["encrypted_content"] = seal_reasoning(text)
        done = self._part(f"response.{part['type']}.done", text=text, **extra)
        return [done, self._part("response.content_part.done", part=part)]

    def _close_custom(self, item: dict[str, Any], text: str) -> list[StreamEvent]:
        """The text of a custom tool is known when its arguments are whole: it comes in one piece."""
        item["input"] = text
        delta = self._of_item("response.custom_tool_call_input.delta", delta=text)
        return [delta, self._of_item("response.custom_tool_call_input.done", input=text)]

    def _id(self, prefix: str) -> str:
        """Of the next item. It is the same where the response is made again."""
        return f"{prefix}_{hashlib.sha256(f'{self.id} {len(self.output)}'.encode()).hexdigest()[:32]}"

    def _of_item(self, kind: str, **fields: Any) -> StreamEvent:
        place = {"item_id": self.output[-1]["id"], "output_index": len(self.output) - 1}
        return {"type": kind, **place, **fields}

    def _part(self, kind: str, **fields: Any) -> StreamEvent:
        return self._of_item(kind, content_index=0, **fields)


def _content(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    if kind == "message":
        return {"type": _TEXT, "text": text, "annotations": [], "logprobs": logprobs}
    return {"type": _THOUGHT, "text": text}

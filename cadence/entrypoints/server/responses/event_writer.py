"""Stream events as bytes, numbered. Where a response is made again, because its process is gone, those that were sent
before are left out: clients get each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

import msgspec

from cadence.entrypoints.server.http.errors import ApiError
from cadence.entrypoints.server.http.stream import encode_json
from cadence.entrypoints.server.protocol.responses.responses_answer import StreamEvent


class EventWriter:
    def __init__(self, sent: Sequence[bytes] = ()) -> None:
        """sent: events of this response that clients may have"""
        self._next = len(sent)
        self._sent = SentEvents([msgspec.json.decode(event.partition(b"\ndata: ")[2]) for event in sent])

    def write(self, events: Sequence[StreamEvent]) -> list[bytes]:
        """Raises an ApiError where what is said does not go on from what was sent; what comes then is written."""
        written = []
        for event in self._sent.without(events) if self._sent else events:
            written.append(event_bytes(event, self._next))
            self._next += 1
        return written


def event_bytes(event: StreamEvent, number: int) -> bytes:
    numbered = {"type": event["type"], "sequence_number": number, **event}
    return b"event: " + event["type"].encode() + b"\ndata: " + encode_json(numbered) + b"\n\n"


class SentEvents:
    """Texts may be cut into other deltas than before: they are compared as texts, all else event by event."""

    def __init__(self, sent: Sequence[dict[str, Any]]) -> None:
        self._sent = deque(sent)
        self._text = ""  # of deltas that were sent, and are not written again yet
        self._logprobs = 0  # of these
        self._kind = ""  # theirs

    def __bool__(self) -> bool:
        return bool(self._sent or self._text)

    def without(self, events: Sequence[StreamEvent]) -> list[StreamEvent]:
        return [left for event in events for left in self._left_of(event)]

    def _left_of(self, event: StreamEvent) -> list[StreamEvent]:
        kind = event["type"]
        if kind.endswith(".delta"):
            self._gather(kind)
            if self._text:
                return self._cut(event)
        if not self:
            return [event]
        if self._text or self._sent.popleft()["type"] != kind:
            raise self._differs()
        return []

    def _gather(self, kind: str) -> None:
        """The deltas that stand at this place."""
        if self._text and self._kind != kind:
            raise self._differs()
        self._kind = kind
        while self._sent and self._sent[0]["type"] == kind:
            delta = self._sent.popleft()
            self._text += delta["delta"]
            self._logprobs += len(delta.get("logprobs", ()))

    def _cut(self, event: StreamEvent) -> list[StreamEvent]:
        said, known = event["delta"], self._text
        if not said.startswith(known[: len(said)]) or (len(said) > len(known) and self._sent):
            raise self._differs()
        self._text = known[len(said) :]
        logprobs = event.get("logprobs", ())
        more = {"logprobs": logprobs[self._logprobs :]} if logprobs else {}
        self._logprobs = max(0, self._logprobs - len(logprobs))
        return [{**event, "delta": said[len(known) :], **more}] if len(said) > len(known) else []

    def _differs(self) -> ApiError:
        self._sent.clear()
        self._text = ""
        message = "The process that made this response is gone, and another one made it differently."
        return ApiError(503, message, code="response_not_resumed")

"""A chat's answer in OpenAI's words: one object, or a stream of chunks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from cadence.core.outputs import PositionLogprobs
from cadence.entrypoints.server.chat.events import (
    ChatEvent,
    ChoiceEnd,
    Delta,
    LastReasoning,
    LastText,
    LastToolCall,
    PromptRead,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    Usage,
)
from cadence.entrypoints.server.http.stream import ChunkEncoder, StartedStream
from cadence.entrypoints.server.protocol.logprobs import TokenNames, chat_logprobs, prompt_logprobs
from cadence.entrypoints.server.protocol.usage import NO_DETAILS, usage_object

LAST = (LastText, LastReasoning, LastToolCall)
_AROUND = ('"delta":{"content":', '},"logprobs":null,"finish_reason":null,"token_ids":null')
# What vLLM has and this server has nothing to say about: there, but null.
_NO_ANSWER = dict.fromkeys(
    ("service_tier", "system_fingerprint", "kv_transfer_params", "ec_transfer_params", "metrics")
)
_NO_MESSAGE = dict.fromkeys(("refusal", "annotations", "audio", "function_call", "reasoning"))


@dataclass(frozen=True, slots=True)
class ChatView:
    """What of an answer the client asked to see."""

    base: dict[str, Any]  # id, created, model, system_fingerprint
    names: TokenNames
    role: str
    n: int
    echo: str  # text every answer begins with
    top_logprobs: int | None  # None = no logprobs
    token_ids: bool
    drafted: bool  # say which tokens were drafts
    prompt_text: bool
    reasoning: bool
    reasons: bool  # the server tells reasoning apart, and counts it
    parallel_calls: bool
    calls_demanded: bool
    called_by_name: bool
    include_usage: bool
    continuous_usage: bool
    usage_details: bool

    @property
    def plain(self) -> bool:
        """Whether chunks of text hold nothing else."""
        return self.top_logprobs is None and not (self.token_ids or self.drafted or self.continuous_usage)

    def shows(self, event: Delta) -> bool:
        if isinstance(event, ToolCallDelta):
            return self.parallel_calls or event.call == 0
        return self.reasoning or not isinstance(event, ReasoningDelta)

    def logprobs(self, ids: Sequence[int], positions: Sequence[PositionLogprobs] | None) -> dict[str, Any] | None:
        if self.top_logprobs is None or positions is None:
            return None
        return chat_logprobs(self.names, ids, positions, self.top_logprobs)

    def finish_reason(self, event: ChoiceEnd) -> str:
        """A call that was demanded by name is the whole answer, which OpenAI calls `stop`."""
        return "stop" if self.called_by_name and event.finish_reason == "tool_calls" else event.finish_reason

    def usage(self, event: Usage) -> dict[str, Any]:
        return usage_object(event, self.usage_details, self.reasons)

    def prompt_extras(self, event: PromptRead) -> dict[str, Any]:
        return {
            "prompt_logprobs": prompt_logprobs(event.prompt_logprobs),
            "prompt_token_ids": list(event.prompt_token_ids) if self.token_ids else None,
            "prompt_text": event.prompt_text if self.prompt_text else None,
        }


class ChatChunks:
    def __init__(self, view: ChatView) -> None:
        base = {**view.base, "object": "chat.completion.chunk"}
        self._view = view
        self._plain = view.plain
        self._writer = ChunkEncoder(base, _AROUND, view.include_usage)
        self._prompt_tokens = 0
        self._completion_tokens = [0] * view.n
        self._last: dict[int, Delta] = {}  # by choice: what its last chunk says beside why it ended

    def of(self, events: Sequence[ChatEvent]) -> bytes:
        """The chunks of events that come neither first nor last."""
        return b"".join([self._written(event) for event in events])

    async def write(
        self, source: AsyncGenerator[ChatEvent, None] | StartedStream[ChatEvent]
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(source) as events:
            async for event in events:
                if chunk := self._written(event):
                    yield chunk

    def _written(self, event: ChatEvent) -> bytes:
        """b"" where there is nothing to show."""
        if self._plain and type(event) is TextDelta:
            return self._writer.text(event.index, event.text) if event.text else b""
        return self._chunk(event)

    def _chunk(self, event: ChatEvent) -> bytes:
        """b"" for what the client does not want to see."""
        if isinstance(event, PromptRead):
            return self._opening(event)
        if isinstance(event, Usage):
            wanted = self._view.include_usage
            return self._writer.usage(self._view.usage(event)) if wanted else b""
        if isinstance(event, ChoiceEnd):
            return self._end(event)
        self._completion_tokens[event.index] += len(event.token_ids)
        if not self._view.shows(event):
            return b""
        if isinstance(event, LAST):
            self._last[event.index] = event
            return b""
        return self._write(event.index, _delta(event), {}, **self._tokens(event))

    def _opening(self, event: PromptRead) -> bytes:
        """A chunk with the role for each choice, then what is echoed."""
        self._prompt_tokens = len(event.prompt_token_ids)
        extras = self._view.prompt_extras(event)
        chunks = [
            self._write(index, {"role": self._view.role, "content": ""}, extras if index == 0 else {})
            for index in range(self._view.n)
        ]
        if self._view.echo:
            chunks += [self._write(index, {"content": self._view.echo}, {}) for index in range(self._view.n)]
        return b"".join(chunks)

    def _end(self, event: ChoiceEnd) -> bytes:
        """The last text of a choice and its finish reason are one chunk, as in vLLM."""
        last = self._last.pop(event.index, None)
        nothing = {"token_ids": [] if self._view.token_ids else None}
        delta, tokens = (_delta(last), self._tokens(last)) if last is not None else ({}, nothing)
        finish = {"finish_reason": self._view.finish_reason(event), "stop_reason": event.stop_reason}
        return self._write(event.index, delta, {}, **{**tokens, **finish})

    def _tokens(self, event: Delta) -> dict[str, Any]:
        view, logprobs = self._view, self._view.logprobs(event.token_ids, event.logprobs)
        told: dict[str, Any] = {"logprobs": logprobs, "token_ids": list(event.token_ids) if view.token_ids else None}
        return {**told, "drafted": list(event.drafted)} if view.drafted else told

    def _write(self, index: int, delta: dict[str, Any], extras: dict[str, Any], **more: Any) -> bytes:
        """Only chunks that tell of tokens have `token_ids`."""
        choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **more}
        if self._view.continuous_usage:
            so_far = Usage(self._prompt_tokens, self._completion_tokens[index], 0)
            extras = {**extras, "usage": usage_object(so_far)}
        return self._writer.choice(choice, **extras)


class ChatAnswer:
    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._messages = [_Message(view) for _ in range(view.n)]
        self._answer: dict[str, Any] = {**view.base, "object": "chat.completion"}

    async def read(self, source: AsyncGenerator[ChatEvent, None]) -> dict[str, Any]:
        async with aclosing(source) as events:
            async for event in events:
                if isinstance(event, PromptRead):
                    self._answer |= self._view.prompt_extras(event)
                elif isinstance(event, Usage):
                    self._answer["usage"] = {**NO_DETAILS, **self._view.usage(event)}
                else:
                    self._messages[event.index].add(event)
        choices = [{"index": index, **message.choice()} for index, message in enumerate(self._messages)]
        return {**_NO_ANSWER, **self._answer, "choices": choices}


class _Message:
    """One choice, put together."""

    def __init__(self, view: ChatView) -> None:
        self._view = view
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._calls: list[dict[str, Any]] = []
        self._token_ids: list[int] = []
        self._logprobs: list[PositionLogprobs] = []
        self._drafted: list[int] = []  # places in _token_ids
        self._end = ChoiceEnd(0, "stop")

    def add(self, event: Delta | ChoiceEnd) -> None:
        if isinstance(event, ChoiceEnd):
            self._end = event
            return
        if not self._view.shows(event):
            return
        self._drafted += [len(self._token_ids) + place for place in event.drafted]
        self._token_ids.extend(event.token_ids)
        self._logprobs.extend(event.logprobs or ())
        if isinstance(event, TextDelta):
            self._text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            self._reasoning.append(event.text)
        elif event.name:
            function = {"name": event.name, "arguments": event.arguments}
            self._calls.append({"id": event.call_id, "type": "function", "function": function})
        else:
            self._calls[event.call]["function"]["arguments"] += event.arguments

    def choice(self) -> dict[str, Any]:
        view = self._view
        drafted = {"drafted": self._drafted} if view.drafted else {}
        return {
            "message": self._message(),
            "logprobs": view.logprobs(self._token_ids, self._logprobs),
            "finish_reason": view.finish_reason(self._end),
            "stop_reason": self._end.stop_reason,
            "token_ids": self._token_ids if view.token_ids else None,
            **drafted,
            "routed_experts": None,
        }

    def _message(self) -> dict[str, Any]:
        text, reasoning = self._view.echo + "".join(self._text), "".join(self._reasoning)
        message: dict[str, Any] = {"role": self._view.role, "content": text, **_NO_MESSAGE}
        if reasoning:
            message |= {"reasoning": reasoning, "reasoning_content": reasoning}
        if self._calls:
            message["tool_calls"] = self._calls
        if not text and (self._calls or reasoning) and not self._view.calls_demanded:
            message["content"] = None  # where calls are demanded it stays "", as in vLLM
        return message


def _delta(event: Delta) -> dict[str, Any]:
    if isinstance(event, TextDelta):
        return {"content": event.text}
    if isinstance(event, ReasoningDelta):
        return {"reasoning": event.text, "reasoning_content": event.text}
    call: dict[str, Any] = {"index": event.call, "function": {"arguments": event.arguments}}
    if event.name:
        call |= {"id": event.call_id, "type": "function"}
        call["function"] = {"name": event.name, "arguments": event.arguments}
    return {"tool_calls": [call]}

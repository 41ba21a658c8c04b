"""A response as its client sees it: events of a live request of the engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.websockets import WebSocket

from cadence.core.errors import InvalidRequestError
from cadence.core.outputs import RequestOutput
from cadence.engine.text.live_request import LiveChunk
from cadence.entrypoints.server.chat.events import ChatJob
from cadence.entrypoints.server.chat.failures import raise_failure
from cadence.entrypoints.server.http.admission import AdmittedRequest
from cadence.entrypoints.server.http.request_deadline import LATE, ends_within
from cadence.entrypoints.server.protocol.chat import ChatCompletionBody
from cadence.entrypoints.server.routes.chat import checked_job
from cadence.entrypoints.server.routes.realtime.events import Settings, new_id
from cadence.entrypoints.server.routes.state import ServerState

MOST_PIECES = 64  # of a prompt, that wait to be looked at
MOST_WAITING = 1 << 20  # characters and ids of these
STATUSES = {"abort": "cancelled", "length": "incomplete"}  # by why it ended; others are completed


class RealtimeResponse:
    def __init__(
        self,
        socket: WebSocket,
        state: ServerState,
        settings: Settings,
        send: Callable[[dict[str, Any]], Awaitable[None]],
    ) -> None:
        self.id = new_id("resp")
        self._item_id = new_id("item")
        self._socket = socket
        self._state = state
        self._settings = settings
        self._send = send
        self._pieces: asyncio.Queue[LiveChunk] = asyncio.Queue(MOST_PIECES)
        self._waiting = 0  # characters and ids of `_pieces`
        self._entry: AdmittedRequest
        self._job: ChatJob
        self._text = ""
        self._status = "in_progress"
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None

    async def prepare(self, messages: list[dict[str, Any]], size: int) -> None:
        """Raises what is wrong with the conversation, or that there is no room. size: of the messages, about"""
        state = self._state
        self._job = await state.bodies.run(size, self._checked, messages)
        self._entry = state.admission.enter(self._socket, self._job.estimated_tokens())
        try:
            prompt, self._params = await state.chat.prepare(self._job)
        except BaseException:
            self._entry.fail()
            raise
        self._pieces.put_nowait(prompt)

    def _checked(self, messages: list[dict[str, Any]]) -> ChatJob:
        settings = self._settings
        given = {"model": settings.model or None, "max_completion_tokens": settings.max_tokens, "stream": True}
        if settings.temperature is not msgspec.UNSET:
            given["temperature"] = settings.temperature
        body = ChatCompletionBody.model_validate({"messages": messages, "request_id": self.id, **given})
        _, _, job = checked_job(body, self._socket, self._state)  # type: ignore[arg-type]
        return job

    def append(self, piece: LiveChunk) -> None:
        """More of the prompt."""
        if self._pieces.full() or (self._waiting and self._waiting + _size(piece) > MOST_WAITING):
            message = f"{self._pieces.qsize()} pieces wait to be read; try again later"
            raise InvalidRequestError(message, "text", "too_many_pieces")
        self._waiting += _size(piece)
        self._pieces.put_nowait(piece)

    async def cancel(self) -> None:
        await self._state.llm.abort(self._job.request_id)

    async def write(self) -> dict[str, Any]:
        """-> the item that was written"""
        async with self._entry:
            await self._send({"type": "response.created", "response": self._shown()})
            place = {"response_id": self.id, "output_index": 0}
            await self._send({"type": "response.output_item.added", **place, "item": self._item("in_progress")})
            where = {**place, "item_id": self._item_id, "content_index": 0}
            num_output, last = 0, None
            async with aclosing(self._outputs()) as outputs:
                async for last in outputs:
                    (completion,) = last.outputs
                    num_output += len(completion.token_ids)
                    if completion.finish_reason is not None and completion.finish_reason != "abort":
                        raise_failure(completion)
                    if completion.text:
                        self._text += completion.text
                        await self._send({"type": "response.output_text.delta", **where, "delta": completion.text})
            assert last is not None
            self._end(last, num_output)
            await self._send({"type": "response.output_text.done", **where, "text": self._text})
            item = self._item("completed" if self._status == "completed" else "incomplete")
            await self._send({"type": "response.output_item.done", **place, "item": item})
            return item

    async def end(self) -> None:
        await self._send({"type": "response.done", "response": self._shown()})

    async def fail(self) -> None:
        self._status = "failed"
        await self.end()

    def _outputs(self) -> AsyncGenerator[RequestOutput]:
        job, llm, seconds = self._job, self._state.llm, self._state.options.request_deadline
        given: dict[str, Any] = {"ends_with_answer": True, "priority": job.priority, **job.of_adapter}
        outputs = llm.live(self._all_pieces(), self._params, job.request_id, **given)
        return ends_within(outputs, seconds, LATE) if seconds else outputs

    async def _all_pieces(self) -> AsyncGenerator[LiveChunk]:
        while True:
            piece = await self._pieces.get()
            self._waiting -= _size(piece)
            yield piece

    def _end(self, last: RequestOutput, num_output: int) -> None:
        reason = last.outputs[0].finish_reason or ""
        self._status = STATUSES.get(reason, "completed")
        self._reason = {"abort": "client_cancelled", "length": "max_output_tokens"}.get(reason)
        num_input = len(last.prompt_token_ids or ())
        cached = min(last.num_cached_tokens or 0, num_input)
        self._usage = {
            "total_tokens": num_input + num_output,
            "input_tokens": num_input,
            "output_tokens": num_output,
            "input_token_details": {"text_tokens": num_input, "cached_tokens": cached},
            "output_token_details": {"text_tokens": num_output},
        }

    def _item(self, status: str) -> dict[str, Any]:
        content = [{"type": "output_text", "text": self._text}] if self._text else []
        return {"id": self._item_id, "object": "realtime.item", "type": "message", "status": status,
                "role": "assistant", "content": content}  # fmt: skip

    def _shown(self) -> dict[str, Any]:
        is_over = self._status != "in_progress"
        details = {"type": self._status, "reason": self._reason} if self._reason else None
        return {"id": self.id, "object": "realtime.response", "status": self._status, "status_details": details,
                "output_modalities": ["text"], "usage": self._usage,
                "output": [self._item("completed")] if is_over and self._text else []}  # fmt: skip


def _size(piece: LiveChunk) -> int:
    """Of what a client appends; the first is not."""
    return len(piece) if isinstance(piece, str | list) else 0

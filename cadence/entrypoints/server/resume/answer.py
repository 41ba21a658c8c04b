"""Runs a request again that another process has answered in part."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.engine.text.held_updates import Resumption, StreamPosition
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.server.http.errors import route_path, unavailable
from cadence.entrypoints.server.http.outbox import BODY_WRITER, OutboxWriter
from cadence.entrypoints.server.http.request_ids import ENGINE_IDS
from cadence.entrypoints.server.http.sockets.connection import ResumedRequest
from cadence.entrypoints.server.http.stream import error_event
from cadence.entrypoints.server.http.uvicorn_private import AnswerGate, OpenGate
from cadence.entrypoints.server.resume.unfinished import UnfinishedAnswer

LOST = "The server was replaced while it answered, and the answer could not be taken up again."


def resumed_request(answer: UnfinishedAnswer, llm_of: Callable[[Scope], AsyncLLM]) -> ResumedRequest:
    def wrap(app: ASGIApp, gate: AnswerGate | OpenGate) -> ASGIApp:
        return ResumedApp(app, gate, answer, llm_of)

    return ResumedRequest(
        unsent=answer.unsent,
        content=answer.content,
        is_begun=answer.is_begun,
        closes=answer.closes,
        wrap=wrap,
    )


class ResumedApp:
    """The application, for one request. The gate opens when all that the client has was made again."""

    def __init__(
        self,
        app: ASGIApp,
        gate: AnswerGate | OpenGate,
        answer: UnfinishedAnswer,
        llm_of: Callable[[Scope], AsyncLLM],
    ) -> None:
        self._app = app
        self._gate = gate
        self._answer = answer
        self._llm_of = llm_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope.update(self._answer.names)

        async def open_gate() -> None:
            writer: OutboxWriter = scope[BODY_WRITER]
            await writer.settle()
            self._gate.open()

        def begin(engine_id: str, position: StreamPosition) -> None:
            self._llm_of(scope).resume(engine_id, Resumption(position, open_gate))

        scope[ENGINE_IDS] = _ResumedIds(self._answer.positions, begin)
        try:
            await self._app(scope, receive, send)
        finally:
            if not self._gate.is_open:
                self._gate.end(error_event(unavailable(LOST), route_path(scope)))


class _ResumedIds(list[str]):
    """Ids of requests to the engine. Each is one that the answer has made before, in the same order."""

    def __init__(
        self, positions: Iterable[StreamPosition | None], begin: Callable[[str, StreamPosition], None]
    ) -> None:
        super().__init__()
        self._positions = iter(positions)
        self._begin = begin

    def append(self, engine_id: str) -> None:
        super().append(engine_id)
        position = next(self._positions, None)
        if position is not None:
            self._begin(engine_id, position)

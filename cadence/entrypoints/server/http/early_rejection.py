"""Requests that an overloaded server rejects before it reads them.

When there is no room for even the smallest request, it is rejected here: nothing of its body is read or parsed, and the
answer is encoded once for all. Those that are let through start one per iteration of the event loop: reading a request
takes as long as rejecting ten, or handing a token to twenty streams, so a burst of arrivals delays neither.
"""

from __future__ import annotations

import asyncio
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.entrypoints.server.http.admission import AdmissionControl
from cadence.entrypoints.server.http.errors import overloaded, reply_for, route_path
from cadence.entrypoints.server.http.overload import Overload

GUARDED = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages",
    "/invocations", "/inference/v1/generate", "/v1/embeddings", "/pooling", "/classify", "/score", "/v1/score",
    "/rerank", "/v1/rerank", "/v2/rerank", "/generative_scoring", "/v1/embed", "/v2/embed",
    "/v1/audio/transcriptions", "/v1/audio/translations",
})  # fmt: skip
_SLOW_HEADERS = ((b"connection", b"close"), (b"expect", b"100-continue"))

_Encoded = tuple[int, list[tuple[bytes, bytes]], bytes]  # status, headers, body


class EarlyRejection:
    def __init__(self, app: ASGIApp, admission: AdmissionControl) -> None:
        self._app = app
        self._admission = admission
        self._pacer = ArrivalPacer()
        self._answers: dict[tuple[Overload, str], _Encoded] = {}  # few: limits times paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in GUARDED:
            await self._app(scope, receive, send)
            return
        admission = self._admission
        overload = admission.overload(1, 1 + admission.arriving)
        if overload is not None and not admission.draining and _keeps_connection(scope):
            admission.refused += 1
            status, headers, body = self._answer(overload, route_path(scope))
            await send({"type": "http.response.start", "status": status, "headers": [*headers]})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        admission.arrives(scope)
        try:
            await self._pacer.wait()
            await self._app(scope, receive, send)
        finally:
            admission.arrived(scope)

    def _answer(self, overload: Overload, path: str) -> _Encoded:
        known = self._answers.get((overload, path))
        if known is None:
            response = reply_for(overloaded(*overload)).response(path)
            known = (response.status_code, response.raw_headers, bytes(response.body))
            self._answers[overload, path] = known
        return known


class ArrivalPacer:
    """Lets one request pass per iteration of the event loop, in order of arrival."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._scheduled = False

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._release_next)
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _release_next(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # its client may have left
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._release_next)
                return
        self._scheduled = False


def _keeps_connection(scope: Scope) -> bool:
    """Whether an answer may go out before the body came in. A connection that is closed with bytes unread is reset,
    and the answer with it; a client that waits to be asked for its body would leave it out."""
    return scope["http_version"] != "1.0" and not any(
        name == slow and value.lower() == word for name, value in scope["headers"] for slow, word in _SLOW_HEADERS
    )

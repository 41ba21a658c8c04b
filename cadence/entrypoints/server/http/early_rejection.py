"""The door of a full house.

When there is no room for even the smallest request, it is turned away here: nothing of its body is read or parsed, and
the answer is made beforehand. Those who may come in do so one in a turn of the event loop. Reading a request takes as
long as turning away ten, or handing a token to twenty streams: a crowd that comes at once keeps neither waiting.
"""

from __future__ import annotations

import asyncio
import functools
from collections import deque

from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.entrypoints.server.http.admission import Admission, Refusal
from cadence.entrypoints.server.http.errors import overloaded, reply_for, route_path

GUARDED = frozenset({
    "/v1/completions", "/v1/chat/completions", "/v1/chat/completions/batch", "/v1/responses", "/v1/messages",
    "/invocations", "/inference/v1/generate",
})  # fmt: skip
_SLOW_HEADERS = ((b"connection", b"close"), (b"expect", b"100-continue"))


class Door:
    def __init__(self, app: ASGIApp, admission: Admission) -> None:
        self._app = app
        self._admission = admission
        self._turnstile = Turnstile()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "POST" or route_path(scope) not in GUARDED:
            await self._app(scope, receive, send)
            return
        admission = self._admission
        refusal = admission.refusal(1, 1 + admission.arriving)
        if refusal is not None and not admission.draining and _keeps_connection(scope):
            admission.refused += 1
            status, headers, body = _answer(refusal, route_path(scope))
            await send({"type": "http.response.start", "status": status, "headers": [*headers]})
            await send({"type": "http.response.body", "body": body, "more_body": False})
            return
        admission.arrives(scope)
        try:
            await self._turnstile.enter()
            await self._app(scope, receive, send)
        finally:
            admission.arrived(scope)


class Turnstile:
    """Lets one through in a turn of the event loop, in the order of their coming."""

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._turning = False

    async def enter(self) -> None:
        loop = asyncio.get_running_loop()
        if not self._turning:
            self._turning = True
            loop.call_soon(self._turn)
            return
        mine = loop.create_future()
        self._waiting.append(mine)
        await mine

    def _turn(self) -> None:
        while self._waiting:
            first = self._waiting.popleft()
            if not first.done():  # its client may have left
                first.set_result(None)
                asyncio.get_running_loop().call_soon(self._turn)
                return
        self._turning = False


def _keeps_connection(scope: Scope) -> bool:
    """Whether an answer may go out before the body came in. A connection that is closed with bytes unread is reset,
    and the answer with it; a client that waits to be asked for its body would leave it out."""
    return scope["http_version"] != "1.0" and not any(
        name == slow and value.lower() == word for name, value in scope["headers"] for slow, word in _SLOW_HEADERS
    )


@functools.lru_cache(maxsize=256)
def _answer(refusal: Refusal, path: str) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
    response = reply_for(overloaded(*refusal)).response(path)
    return response.status_code, response.raw_headers, bytes(response.body)

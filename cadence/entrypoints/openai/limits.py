"""What a request body may be: JSON, in UTF-8, not too large, not too deep.

The body is read here, whole, before anyone parses it. While the answer is made the connection is watched: when the
client leaves before it begins, whoever works on it is cancelled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadence.entrypoints.openai.errors import ApiError, reply_for, route_path
from cadence.entrypoints.openai.options import ServeOptions

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_STRING_OR_BRACKET = re.compile(rb'"(?:[^"\\]|\\.)*+"|[\[\]{}]', re.DOTALL)
_SURROGATE = re.compile(rb"\\(?:u([dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL)
_DRAIN_FACTOR = 4  # of a body that is too large, this much more is read and dropped before the client is cut off


class BodyLimits:
    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._max_bytes = options.max_body_bytes
        self._max_depth = options.max_json_depth

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _METHODS_WITH_BODY:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(Headers(scope=scope), receive)
        except ApiError as error:
            await reply_for(error).response(route_path(scope))(scope, receive, send)
            return
        await _run_watched(lambda inner, out: self._app(scope, inner, out), body, receive, send)

    async def _read(self, headers: Headers, receive: Receive) -> bytes:
        declared = headers.get("content-length", "")
        too_large = declared.isdecimal() and int(declared) > self._max_bytes
        if too_large and headers.get("expect", "").lower() == "100-continue":
            raise self._too_large()
        chunks: list[bytes] = []
        size, more = 0, True
        while more and size <= self._max_bytes * (1 + _DRAIN_FACTOR):
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            more = message.get("more_body", False)
            size += len(message.get("body", b""))
            if size <= self._max_bytes:
                chunks.append(message.get("body", b""))
        if size > self._max_bytes:
            raise self._too_large()
        body = b"".join(chunks)
        if body:
            _check_type(headers)
            check_json(body, self._max_depth)
        return body

    def _too_large(self) -> ApiError:
        message = f"The request body is larger than the limit of {self._max_bytes} bytes."
        return ApiError(413, message, headers={"Connection": "close"})


def _check_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(.+\+)?json", media_type):
        raise ApiError(415, f"Content-Type must be application/json, not {media_type or 'missing'}.")


def check_json(body: bytes, max_depth: int) -> None:
    """What a parser would stumble over, or hand on to others who would: nesting, encoding, halves of characters."""
    if body.count(b"[") + body.count(b"{") > max_depth and _depth(body) > max_depth:
        message = f"The request body is nested more than {max_depth} levels deep."
        raise ApiError(400, message, code="too_deeply_nested")
    try:
        body.decode()
    except UnicodeDecodeError as error:
        message = f"The request body is not valid UTF-8 at byte {error.start}."
        raise ApiError(400, message, code="invalid_json") from None
    if b"\\u" in body and _has_lone_surrogate(body):
        message = "The request body has a \\u escape that is half of a surrogate pair."
        raise ApiError(400, message, code="invalid_json")


def _depth(body: bytes) -> int:
    depth = deepest = 0
    for match in _STRING_OR_BRACKET.finditer(body):
        first = match[0]
        if first in (b"[", b"{"):
            depth += 1
            deepest = max(deepest, depth)
        elif first in (b"]", b"}"):
            depth -= 1
    return deepest


def _has_lone_surrogate(body: bytes) -> bool:
    """A high half must be followed by a low one at once, and a low one comes only so."""
    low_expected_at = -1
    for match in _SURROGATE.finditer(body):
        expected = match.start() == low_expected_at
        low_expected_at = -1
        half = match[1]
        is_low = half is not None and half[1:2].lower() in b"cdef"
        if is_low != expected:
            return True
        if half is not None and not is_low:
            low_expected_at = match.end()
            if not body.startswith(b"\\u", low_expected_at):
                return True
    return False


async def _run_watched(
    app: Callable[[Receive, Send], Awaitable[None]], body: bytes, receive: Receive, send: Send
) -> None:
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.Event()
    pending: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
    started = False

    async def replay() -> Message:
        if pending:
            return pending.pop()
        await gone.wait()
        return {"type": "http.disconnect"}

    async def watching_send(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()
        if not started:
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await app(replay, watching_send)
    except asyncio.CancelledError:
        if not gone.is_set() or started or task.uncancel():
            raise
    finally:
        watcher.cancel()

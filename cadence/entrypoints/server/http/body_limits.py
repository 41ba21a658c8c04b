"""What a request body may be: JSON by its type, and not too large; or a form with a file, on the paths that take one.

The body is read here, whole, before anyone parses it; `bodies.py` does that, and `uploads.py` for forms. While the
answer is made the connection is watched: when the client leaves before it begins, the route that works on it is
cancelled.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http.bodies import BODY, Body
from cadence.entrypoints.server.http.body_budget import BodyBudget, BodyShare, chunks_of
from cadence.entrypoints.server.http.errors import ApiError, reply_for, route_path
from cadence.entrypoints.server.http.uploads import UPLOAD, UPLOAD_PATHS, UPLOADS_AT_ONCE, read_upload

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})


class BodyLimits:
    def __init__(self, app: ASGIApp, options: ServeOptions) -> None:
        self._app = app
        self._max_bytes = options.max_body_bytes
        self._max_file_bytes = options.max_audio_bytes
        self._budget = BodyBudget(options.max_held_body_bytes, options.read_timeout)
        self._disk = BodyBudget(UPLOADS_AT_ONCE * options.max_audio_bytes, options.read_timeout)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] not in _METHODS_WITH_BODY:
            await self._app(scope, receive, send)
            return
        is_upload = route_path(scope) in UPLOAD_PATHS
        share = BodyShare(self._disk if is_upload else self._budget)
        try:
            await (self._serve_upload if is_upload else self._serve)(scope, receive, send, share)
        finally:
            share.free()

    async def _serve_upload(self, scope: Scope, receive: Receive, send: Send, share: BodyShare) -> None:
        try:
            upload = await read_upload(Headers(scope=scope), receive, share, self._max_file_bytes)
        except ApiError as error:
            await reply_for(error).response(route_path(scope))(scope, receive, send)
            return
        scope[UPLOAD] = upload
        try:
            nothing = Body(b"", share)
            await _run_watched(lambda inner, out: self._app(scope, inner, out), nothing, receive, send)
        finally:
            upload.close()

    async def _serve(self, scope: Scope, receive: Receive, send: Send, share: BodyShare) -> None:
        try:
            body = scope[BODY] = Body(await self._read(Headers(scope=scope), receive, share), share)
        except ApiError as error:
            await reply_for(error).response(route_path(scope))(scope, receive, send)
            return
        await _run_watched(lambda inner, out: self._app(scope, inner, out), body, receive, send)

    async def _read(self, headers: Headers, receive: Receive, share: BodyShare) -> bytes:
        message = f"The request body is larger than the limit of {self._max_bytes} bytes."
        too_large = ApiError(413, message, headers={"Connection": "close"})
        chunks = [chunk async for chunk in chunks_of(headers, receive, share, self._max_bytes, too_large)]
        share.complete()
        body = b"".join(chunks)
        if body:
            _check_type(headers)
        return body


def _check_type(headers: Headers) -> None:
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if not re.fullmatch(r"application/(.+\+)?json", media_type):
        raise ApiError(415, f"Content-Type must be application/json, not {media_type or 'missing'}.")


async def _run_watched(
    app: Callable[[Receive, Send], Awaitable[None]], body: Body, receive: Receive, send: Send
) -> None:
    task = asyncio.current_task()
    assert task is not None
    gone = asyncio.Event()
    replayed = started = cancelled = False

    async def replay() -> Message:
        nonlocal replayed
        if not replayed:
            replayed = True
            return {"type": "http.request", "body": body.take(), "more_body": False}
        await gone.wait()
        return {"type": "http.disconnect"}

    async def watching_send(message: Message) -> None:
        nonlocal started
        started = True
        await send(message)

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        nonlocal cancelled
        gone.set()
        if not started:
            cancelled = True
            task.cancel()

    watcher = asyncio.create_task(watch())
    try:
        await app(replay, watching_send)
    except asyncio.CancelledError:
        if not cancelled or task.uncancel():
            raise
    finally:
        watcher.cancel()

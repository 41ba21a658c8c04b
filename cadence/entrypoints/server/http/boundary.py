"""The outermost layer: what must hold for every HTTP request, whatever happens inside.

Every request has an id, every entry of the admission is closed, every exception becomes an answer where one is still
possible, and only bugs are logged, once.
"""

from __future__ import annotations

import logging
import time

from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http.admission import ADMITTED
from cadence.entrypoints.server.http.early_rejection import GUARDED
from cadence.entrypoints.server.http.errors import reply_for, route_path
from cadence.entrypoints.server.http.ignored import ignored_header
from cadence.entrypoints.server.http.load_report import Metrics, load_header
from cadence.entrypoints.server.http.request_ids import request_id

logger = logging.getLogger("cadence.server")


class Boundary:
    def __init__(self, app: ASGIApp, options: ServeOptions, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics
        self._id_header = options.enable_request_id_headers
        self._log = options.enable_log_requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()
        name = request_id(HTTPConnection(scope)) if self._id_header else ""
        answer = _Answer(scope, send, name, self._metrics)
        try:
            await self._app(scope, receive, answer.send)
        except ClientDisconnect:
            pass
        except Exception as error:
            await self._fail(error, scope, receive, answer)
        finally:
            for entry in scope.get(ADMITTED, ()):
                entry.abort()  # nothing, where it has ended
            if self._log:
                self._log_request(scope, answer.status, time.monotonic() - began)

    async def _fail(self, error: Exception, scope: Scope, receive: Receive, answer: _Answer) -> None:
        for entry in scope.get(ADMITTED, ()):
            entry.fail()
        reply = reply_for(error)
        if reply.is_bug or answer.status:
            logger.error("%s %s failed", scope["method"], scope["path"], exc_info=error)
        if not answer.status:
            await reply.response(route_path(scope))(scope, receive, answer.send)

    def _log_request(self, scope: Scope, status: int, seconds: float) -> None:
        name = request_id(HTTPConnection(scope))
        logger.info("%s %s %s %.3f s id=%s", scope["method"], scope["path"], status or "-", seconds, name)


class _Answer:
    """Watches a response go out; adds X-Request-Id where there is one to add, and what was ignored."""

    def __init__(self, scope: Scope, send: Send, request_id: str, metrics: Metrics) -> None:
        self.status = 0  # 0 = not started
        self._scope = scope
        self._send = send
        self._request_id = request_id
        self._metrics = metrics

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            added = ignored_header(self._scope)
            if self.status == 200 and route_path(self._scope) in GUARDED:
                added += load_header(self._scope, self._metrics)
            if self._request_id:
                added.append((b"x-request-id", self._request_id.encode()))
            if added:
                message["headers"] = [*message.get("headers", ()), *added]
        await self._send(message)

"""HTTP/1.1 by httptools, which sets no bounds of its own: the head of a request, the time a client takes to send one
and to read its answer, and the number of connections are bounded here, and what cannot be parsed is answered in the
shape of every other error."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.http.auth import OPEN_PATHS
from cadence.entrypoints.server.http.early_rejection import GUARDED
from cadence.entrypoints.server.http.errors import ErrorReply, reply_for, route_path, unavailable
from cadence.entrypoints.server.http.outbox import HIGH_WATER
from cadence.entrypoints.server.http.sockets.connections import Capacity, Connections
from cadence.entrypoints.server.http.uploads import UPLOAD_PATHS
from cadence.entrypoints.server.http.uvicorn_private import AnswerGate, OpenGate, UvicornHttp

# Requests that change nothing but their answer, and are small enough to be kept until it is whole.
RESUMED_PATHS = GUARDED - {"/v1/responses"} - UPLOAD_PATHS
WrapApp = Callable[[ASGIApp, AnswerGate | OpenGate], ASGIApp]
SPARE_READ_S = 5.0  # for a request to arrive on a connection that is one too many


@dataclass(frozen=True, slots=True)
class HttpLimits:
    max_head_bytes: int
    max_headers: int
    read_timeout: float  # seconds for a whole request to arrive; 0 = no limit

    @classmethod
    def of(cls, options: ServeOptions) -> HttpLimits:
        return cls(options.max_header_bytes, options.max_header_count, options.read_timeout)


@dataclass(frozen=True, slots=True)
class ResumedRequest:
    """One that another process has answered in part."""

    unsent: bytes  # written to the connection first
    content: bytes  # head and body of the request; b"" = there is none
    is_begun: bool  # the head of its answer was written
    closes: bool  # the connection ends with the answer
    wrap: WrapApp


class BoundedHttpProtocol(UvicornHttp):
    def __init__(self, limits: HttpLimits, connections: Connections, **options: Any) -> None:
        super().__init__(**options)
        self._limits = limits
        self._connections = connections
        self._wire: asyncio.Transport | None = None  # next to the socket; the transport itself where there is no TLS
        self._capacity = Capacity.OPEN
        self._read_timeout = limits.read_timeout
        self._unsent = (0, 0)  # bytes that waited to leave when last looked at: at the socket, in all
        self._progress_at = 0.0  # loop time at which there were none, or fewer than before
        self._in_head = True
        self._head_bytes = 0  # received of a head that is not complete
        self._refused = False
        self._read_timer: asyncio.TimerHandle | None = None  # runs while a request is awaited or arrives
        self._resumes: ResumedRequest | None = None  # until its answer begins
        self._is_resuming = False  # until its head is read

    def attach(self, wire: asyncio.Transport, capacity: Capacity) -> None:
        """Called before `connection_made` where there is TLS between the two."""
        self._wire, self._capacity = wire, capacity

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if self._wire is None:
            self.attach(transport, self._connections.enter(transport))
        else:
            transport.set_write_buffer_limits(high=HIGH_WATER)  # TLS holds half a megabyte otherwise
        if self._capacity is not Capacity.OPEN:
            self._read_timeout = min(self._read_timeout or SPARE_READ_S, SPARE_READ_S)
        self._progress_at = self.loop.time()
        self._connections.watch(self)
        self._await_request()
        if self._capacity is Capacity.NONE:
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self._wire)
        self._connections.unwatch(self)
        self._stop_waiting()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Ends the connection with what was not sent; its request ends as if the client had left."""
        self.transport.abort()

    def stalled(self, now: float, timeout: float) -> bool:
        """Looks at what waits only where more does than may, or nothing more will come: then fewer bytes than before,
        at the socket or in all, are bytes that left."""
        below = self._wire.get_write_buffer_size()
        above = self.transport.get_write_buffer_size() if self._wire is not self.transport else 0
        waits = below > HIGH_WATER or self.is_writing_paused or self.transport.is_closing()
        unsent = (below, below + above) if waits else (0, 0)
        if not any(unsent) or any(new < old for new, old in zip(unsent, self._unsent, strict=True)):
            self._progress_at = now
        self._unsent = unsent
        return now - self._progress_at >= timeout

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began_in_head = self._in_head
        super().data_received(data)
        if began_in_head and self._in_head and not self._refused:
            self._head_bytes += len(data)
            self._check_head(self._head_bytes, len(self.headers or ()))

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._await_request()
        self._in_head = True
        self._head_bytes = 0

    def on_headers_complete(self) -> None:
        self._in_head = False
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        self._check_head(size, len(self.headers))
        if not self._refused:
            self._drop_root()
            super().on_headers_complete()

    def _drop_root(self) -> None:
        """A proxy may leave the prefix of `--root-path` on or take it off; uvicorn expects it off."""
        if self.root_path and self.url.startswith(self.root_path.encode() + b"/"):
            self.url = self.url[len(self.root_path.encode()) :]

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._stop_waiting()
        if not self._refused:
            super().on_message_complete()

    def keeps_body(self, scope: Scope) -> bool:
        """What is run again is not run a third time."""
        again, self._is_resuming = self._is_resuming, False
        is_plain = self._wire is self.transport and not again
        return is_plain and scope["method"] == "POST" and route_path(scope) in RESUMED_PATHS

    def may_keep(self, num_bytes: int) -> bool:
        return self._connections.may_keep(num_bytes)

    def forget_kept(self, num_bytes: int) -> None:
        self._connections.forget_kept(num_bytes)

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on as a WebSocket, which is counted as it was."""
        self._connections.unwatch(self)
        self._stop_waiting()
        self.ws_protocol_class = functools.partial(self.open_websocket, self._connections, self._wire)  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    @staticmethod
    def open_websocket(connections: Connections, wire: asyncio.Transport, **given: Any) -> asyncio.Protocol:
        from cadence.entrypoints.server.http.sockets.websocket import BoundedWebSocket  # 20 ms, that few servers need

        return BoundedWebSocket(connections, wire, **given)

    @property
    def has_part_of_request(self) -> bool:
        """Of a head that was read in part: the rest of it cannot be read elsewhere."""
        return self._in_head and self._head_bytes > 0

    @property
    def descriptor(self) -> int:
        """-1 where the connection ends, or only this process can go on with it."""
        is_alive = self._wire is self.transport and not self.transport.is_closing()
        return int(self._wire.get_extra_info("socket").fileno()) if is_alive else -1

    def resume(self, request: ResumedRequest) -> None:
        """On a connection that is new to this process: goes on with a request that came to another."""
        if request.unsent:
            self.transport.write(request.unsent)
        if request.content:
            self._resumes, self._is_resuming = request, True
            self.data_received(request.content)

    def app_for_request(self, app: ASGIApp) -> ASGIApp:
        request, self._resumes = self._resumes, None
        if request is not None:
            if request.closes:
                self.close_after_answer()
            return request.wrap(app, self.gate_answer() if request.is_begun else OpenGate())
        if self._capacity is not Capacity.HEALTH_ONLY:
            return app
        self.close_after_answer()
        return _HealthOnly(app)

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "The request is not valid HTTP.")

    def _check_head(self, size: int, count: int) -> None:
        if size > self._limits.max_head_bytes:
            self._refuse(
                431, f"The request's headers are larger than the limit of {self._limits.max_head_bytes} bytes."
            )
        elif count > self._limits.max_headers:
            self._refuse(431, f"The request has more than {self._limits.max_headers} headers.")

    def _await_request(self) -> None:
        self._stop_waiting()
        if self._read_timeout:
            self._read_timer = self.loop.call_later(self._read_timeout, self._on_read_timeout)

    def _stop_waiting(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        """A client that is not being read, because it was sent nothing yet, is not late."""
        answering = not self.is_newest_answered
        if self.is_reading_paused or (answering and self._in_head):
            self._await_request()
            return
        if answering:
            self.drop_newest_unless_begun()
        self._refuse(408, f"The request did not arrive within the limit of {self._read_timeout:g} s.")

    def _refuse(self, status: int, message: str) -> None:
        """Answers at once and closes the connection; only closes it where an earlier answer is still on its way."""
        if self._refused:
            return
        self._refused = True
        if self.is_newest_over:
            path = self.url.partition(b"?")[0].decode("latin-1")
            content = ErrorReply(status, message).content(path.removeprefix(self.root_path))
            head = (
                f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: application/json\r\n"
                f"content-length: {len(content)}\r\nconnection: close\r\n\r\n"
            )
            self.transport.write(head.encode() + content)
        self.transport.close()


class _HealthOnly:
    """The application, for a connection that is one too many."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = route_path(scope)
        if path in OPEN_PATHS:
            await self._app(scope, receive, send)
        else:
            error = unavailable("The server has as many connections as it can hold; try again later.")
            await reply_for(error).response(path)(scope, receive, send)

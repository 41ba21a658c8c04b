"""A server asked from the shell: HTTP/1.1 on asyncio, with kept connections and streamed answers.

Written on bare asyncio protocols because a load generator often shares the machine with what it measures: a streamed
chunk costs it half the CPU time that it costs httpx, and a quarter on uvloop.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import urlsplit

from cadence.core.errors import CadenceError, ConfigError
from cadence.entrypoints.cli.remote.wire import EventDecoder, ResponseDecoder, WireError

CONNECT_SECONDS = 30.0
DONE = b"[DONE]"

OnEvent = Callable[[dict[str, Any], float], None]  # the event, and when (perf_counter) its bytes arrived


class RemoteError(CadenceError):
    """The server refused, failed, or was not there. `status` is its HTTP status; 0 = it did not get that far."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int
    tls: bool
    prefix: str  # path in front of /v1/…

    @classmethod
    def parse(cls, url: str, field: str = "url") -> Address:
        """`http://host:port`, with or without `/v1` after it."""
        parts = urlsplit(url if "://" in url else f"http://{url}")
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1 or parts.query:
            raise ConfigError(f"{field}={url!r} is not an address such as http://127.0.0.1:8000", field)
        tls = parts.scheme == "https"
        prefix = parts.path.rstrip("/").removesuffix("/v1")
        return cls(parts.hostname, port or (443 if tls else 80), tls, prefix)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}{self.prefix}"


class Reply:
    """What came back. Events of a stream go to `on_event` as they arrive; any other body is kept."""

    def __init__(self, on_event: OnEvent) -> None:
        self.decoder = ResponseDecoder()
        self.body = b""
        self.is_stream = False
        self.done_marker = False  # the stream said [DONE]
        self._on_event = on_event
        self._events = EventDecoder()

    def feed(self, data: bytes, now: float) -> None:
        body = self.decoder.feed(data)
        if not self.is_stream:
            kind = self.decoder.headers.get("content-type", "")
            self.is_stream = self.decoder.status == 200 and kind.startswith("text/event-stream")
        if not self.is_stream:
            self.body += body
            return
        for event in self._events.feed(body):
            if event == DONE:
                self.done_marker = True
            else:
                self._on_event(_event(event), now)


def _event(data: bytes) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError:
        event = None
    if not isinstance(event, dict):
        raise WireError(f"an event of the stream is not a JSON object: {data[:80]!r}")
    return event


class Connection(asyncio.Protocol):
    """One request at a time. A connection that made a mistake, or was told to close, is not used again."""

    def __init__(self) -> None:
        self.usable = False
        self.answered = False  # bytes of the present answer have come
        self._transport: asyncio.Transport | None = None
        self._reply: Reply | None = None
        self._end: asyncio.Future[None] | None = None

    async def exchange(self, request: bytes, reply: Reply) -> None:
        if self._transport is None:
            raise OSError("not connected")
        self._reply, self._end, self.answered = reply, asyncio.get_running_loop().create_future(), False
        self._transport.write(request)
        try:
            await self._end
        except BaseException:
            self.abort()
            raise
        finally:
            self._reply = self._end = None
        if not reply.decoder.keep_alive:
            self.abort()

    def abort(self) -> None:
        """Closes at once, so that the server learns of it before anything else happens here."""
        self.usable = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance
        self.usable = True

    def data_received(self, data: bytes) -> None:
        now = time.perf_counter()
        if self._reply is None or self._end is None:
            self.abort()  # no request is under way
            return
        self.answered = True
        try:
            self._reply.feed(data, now)
        except Exception as error:
            self._finish(error)
            return
        if self._reply.decoder.done:
            self._finish(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.usable = False
        if self._reply is None:
            return
        try:
            self._reply.decoder.close()
        except WireError as wire_error:
            self._finish(error or wire_error)
        else:
            self._finish(None)

    def _finish(self, error: Exception | None) -> None:
        if self._end is None or self._end.done():
            return
        if error is None:
            self._end.set_result(None)
        else:
            self._end.set_exception(error)


@dataclass(slots=True)
class Remote:
    """An OpenAI-compatible server. Use it as an async context manager; connections close with it."""

    address: Address
    headers: Mapping[str, str] = field(default_factory=dict)
    _idle: list[Connection] = field(default_factory=list)

    @classmethod
    def at(cls, url: str, api_key: str = "", headers: Mapping[str, str] | None = None) -> Remote:
        key = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        for name, value in {**key, **(headers or {})}.items():
            if not (name + value).isprintable() or not value.isascii():
                raise ConfigError(f"the header {name} has characters that cannot be sent", "api_key")
        return cls(Address.parse(url), {**key, **(headers or {})})

    async def __aenter__(self) -> Remote:
        return self

    async def __aexit__(self, *exc: object) -> None:
        while self._idle:
            self._idle.pop().abort()
        await asyncio.sleep(0)  # transports close in the loop

    async def get(self, path: str) -> dict[str, Any]:
        return _checked_body(await self._ask("GET", path, b"", _no_event))

    async def text(self, path: str) -> str:
        """An answer that is no JSON."""
        reply = await self._ask("GET", path, b"", _no_event)
        if reply.decoder.status != 200:
            raise RemoteError(f"{self.address}{path}: {reply.decoder.status}", reply.decoder.status)
        return reply.body.decode("utf-8", "replace")

    async def post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return _checked_body(await self._ask("POST", path, json.dumps(body).encode(), _no_event))

    async def stream(self, path: str, body: bytes, on_event: OnEvent) -> None:
        """Returns after [DONE]. Cancelling it closes the connection, which tells the server to stop.

        Raises RemoteError: refused, an error event in mid-stream, or an end without [DONE].
        """

        def pass_on(event: dict[str, Any], now: float) -> None:
            if problem := event.get("error"):
                raise RemoteError(_error_text(problem), _code(problem))
            on_event(event, now)

        reply = await self._ask("POST", path, body, pass_on)
        if not reply.is_stream:
            _checked_body(reply)
            raise RemoteError(
                f"{self.address}{path} answered with {reply.body[:80]!r} where a stream was asked for", 200
            )
        if not reply.done_marker:
            raise RemoteError("the stream ended without [DONE]", 200)

    async def model_name(self) -> str:
        """The first model the server lists."""
        listed = await self.get("/v1/models")
        try:
            return str(listed["data"][0]["id"])
        except (LookupError, TypeError):
            raise RemoteError(f"{self.address}/v1/models lists no model; name one") from None

    async def _ask(self, method: str, path: str, body: bytes, on_event: OnEvent) -> Reply:
        request = self._head(method, path, body) + body
        while True:
            connection = await self._connection()
            kept = connection.answered
            reply = Reply(on_event)
            try:
                await connection.exchange(request, reply)
            except (OSError, WireError) as error:
                if kept and not connection.answered:
                    continue  # the server had closed this kept connection before it saw the request
                raise RemoteError(f"{self.address}: {error}", reply.decoder.status) from None
            if connection.usable:
                self._idle.append(connection)
            return reply

    async def _connection(self) -> Connection:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        context = ssl.create_default_context() if self.address.tls else None
        loop = asyncio.get_running_loop()
        opening = loop.create_connection(Connection, self.address.host, self.address.port, ssl=context)
        try:
            _, connection = await asyncio.wait_for(opening, CONNECT_SECONDS)
        except TimeoutError:
            raise RemoteError(f"{self.address} does not answer") from None
        except OSError as error:
            raise RemoteError(f"cannot reach {self.address}: {error.strerror or error}") from None
        return connection

    def _head(self, method: str, path: str, body: bytes) -> bytes:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        lines = [f"{method} {self.address.prefix}{path} HTTP/1.1", f"Host: {host}:{self.address.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if method == "POST":
            lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def _no_event(event: dict[str, Any], now: float) -> None:
    """For answers that are no streams."""


def _checked_body(reply: Reply) -> dict[str, Any]:
    status = reply.decoder.status
    try:
        content = json.loads(reply.body)
    except ValueError:
        content = reply.body[:200].decode("utf-8", "replace")
    if status >= 300:
        problem = content.get("error", content) if isinstance(content, dict) else content
        raise RemoteError(f"{status}: {_error_text(problem)}", status)
    if not isinstance(content, dict):
        raise RemoteError(f"the answer is not a JSON object: {str(content)[:80]!r}", status)
    return content


def _error_text(problem: Any) -> str:
    text = problem.get("message", problem) if isinstance(problem, dict) else problem
    return " ".join(str(text).split())


def _code(problem: Any) -> int:
    code = problem.get("code") if isinstance(problem, dict) else None
    return code if isinstance(code, int) else 500

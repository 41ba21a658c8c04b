"""The server's application asked in this process: a request is a function call, with no socket and no port."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]], Awaitable[None]
]


@dataclass(slots=True)
class AppReply:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)  # names in lower case
    content: bytes = b""

    @property
    def body(self) -> Any:
        """Parsed where it is JSON, else as text."""
        try:
            return json.loads(self.content)
        except ValueError:
            return self.content.decode("utf-8", "replace")


async def post(app: AsgiApp, path: str, body: bytes, request_id: str) -> AppReply:
    """Cancelling it is what a client does that disconnects."""
    reply = AppReply()
    parts: list[bytes] = []
    inbox = [{"type": "http.request", "body": body, "more_body": False}]
    over = asyncio.Event()

    async def receive() -> Message:
        if inbox:
            return inbox.pop()
        await over.wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            reply.status = message["status"]
            reply.headers = {
                name.decode("latin-1").lower(): value.decode("latin-1") for name, value in message["headers"]
            }
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))
            if not message.get("more_body", False):
                over.set()

    await app(_scope(path, body, request_id), receive, send)
    reply.content = b"".join(parts)
    return reply


def _scope(path: str, body: bytes, request_id: str) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [
            (b"host", b"batch"),
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-request-id", request_id.encode()),
        ],
        "client": ("127.0.0.1", 0),
        "server": ("127.0.0.1", 0),
        "state": {},
    }

"""A lean streaming client: many connections cost little, and it can misbehave on purpose."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


def request_bytes(path: str, body: dict[str, Any]) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nconnection: close\r\n"
    return head.encode() + f"content-length: {len(data)}\r\n\r\n".encode() + data


async def connect(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    parts = urlsplit(url)
    return await asyncio.open_connection(parts.hostname, parts.port)


async def stream_completion(url: str, body: dict[str, Any]) -> tuple[int, str, bool]:
    """(status, text, whether the stream ended with [DONE]) of a streamed /v1/completions request."""
    reader, writer = await connect(url)
    try:
        writer.write(request_bytes("/v1/completions", {**body, "stream": True}))
        status = int((await reader.readline()).split()[1])
        text, done = "", False
        async for line in reader:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                event = json.loads(line[6:])
                text += "".join(choice["text"] for choice in event.get("choices", ()))
        return status, text, done
    finally:
        writer.close()


async def read_some_and_leave(url: str, body: dict[str, Any], num_bytes: int) -> None:
    """Disconnects without a word after `num_bytes` of the answer."""
    reader, writer = await connect(url)
    writer.write(request_bytes("/v1/completions", {**body, "stream": True}))
    read = 0
    while read < num_bytes:
        piece = await reader.read(num_bytes - read)
        if not piece:
            break
        read += len(piece)
    writer.transport.abort()

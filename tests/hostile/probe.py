"""A bystander in a process of its own: asks /livez all the time and reads a stream. What takes long it writes to
stdout, one JSON object a line. `pause` and `go` on stdin end and restart the stream; the end of stdin ends it all.

python -m tests.hostile.probe URL
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
import time
from typing import Any
from urllib.parse import urlsplit

PERIOD_S = 0.02  # between two questions to /livez
TOLD_S = 0.05  # shorter waits are not worth a line
DEADLINE_S = 600.0
PATIENCE_S = 60.0  # for a task that is told to end
_STREAM = {"prompt": [9, 8, 7], "max_tokens": 200, "temperature": 0, "ignore_eos": True, "stream": True}


def tell(kind: str, began: float, seconds: float, text: str = "") -> None:
    print(json.dumps({"kind": kind, "began": began, "seconds": seconds, "text": text}), flush=True)


class Probe:
    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._address: tuple[Any, Any] = parts.hostname, parts.port
        self._expected = ""

    async def ask_livez(self) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await asyncio.open_connection(*self._address)
                try:
                    await self._ask_on(reader, writer)
                finally:
                    writer.close()
            tell("livez failed", time.monotonic(), 0.0, "the connection ended")
            await asyncio.sleep(0.5)

    async def _ask_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            began = time.monotonic()
            writer.write(b"GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n")
            async with asyncio.timeout(DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            seconds = time.monotonic() - began
            if b" 200 " not in head[:16]:
                tell("livez failed", began, seconds, head[:40].decode())
            elif seconds > TOLD_S:
                tell("livez", began, seconds)
            await asyncio.sleep(PERIOD_S)

    async def read_streams(self) -> None:
        """One after another; each has the tokens of the first."""
        while True:
            began = time.monotonic()
            try:
                async with asyncio.timeout(DEADLINE_S):
                    text = await self._read_stream()
            except (OSError, asyncio.IncompleteReadError) as error:
                tell("stream failed", began, time.monotonic() - began, f"{type(error).__name__} {error}")
                await asyncio.sleep(0.5)
                continue
            self._expected = self._expected or text
            if text != self._expected:
                tell("stream failed", began, time.monotonic() - began, "other tokens than the first one's")

    async def _read_stream(self) -> str:
        reader, writer = await asyncio.open_connection(*self._address)
        try:
            body = json.dumps(_STREAM).encode()
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nconnection: close\r\n"
            writer.write(head.encode() + f"content-length: {len(body)}\r\n\r\n".encode() + body)
            status = (await reader.readline()).decode("latin-1").strip()
            if " 200 " not in status:
                raise ConnectionError(f"it was refused: {status}")
            text = ""
            last = 0.0
            async for line in reader:
                if not line.startswith(b"data: "):
                    continue
                now = time.monotonic()
                if last and now - last > TOLD_S:
                    tell("gap", last, now - last)
                last = now
                if line.startswith(b"data: [DONE]"):
                    return text
                event = json.loads(line[6:])
                if "choices" not in event:
                    raise ConnectionError(str(event)[:300])
                text += event["choices"][0]["text"]
            raise ConnectionError("it ended without [DONE]")
        finally:
            writer.transport.abort()


async def _main(url: str) -> None:
    probe = Probe(url)
    loop = asyncio.get_running_loop()
    livez = asyncio.create_task(probe.ask_livez())
    streams = asyncio.create_task(probe.read_streams())
    tell("ready", time.monotonic(), 0.0)
    while word := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        streams.cancel()
        await asyncio.wait({streams}, timeout=PATIENCE_S)
        if word == "go":
            streams = asyncio.create_task(probe.read_streams())
        tell(word, time.monotonic(), 0.0)
    for task in (livez, streams):
        task.cancel()
    await asyncio.wait({livez, streams}, timeout=PATIENCE_S)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))

"""A server that says what a test tells it to, byte by byte, in a thread of its own. No engine and no framework."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

Write = Callable[[bytes], Awaitable[None]]


class ScriptedServer:
    """Answers a completion with `words`, one chunk each; attributes change how."""

    def __init__(self, words: tuple[str, ...] = ("a", " b", " c"), delay: float = 0.0) -> None:
        self.words = words
        self.delay = delay  # seconds before each word
        self.usage = True
        self.keep_alive = True
        self.break_after = -1  # words, then the connection is cut
        self.error_after = -1  # words, then an error event
        self.refuse: dict[int, tuple[int, dict[str, Any]]] = {}  # nth completion -> status and body
        self.has_tokenize = True
        self.metrics: list[str] = []  # what /metrics says, one after the other; [] = there is no such page
        self.bodies: list[dict[str, Any]] = []  # of completions
        self.heads: list[str] = []  # of all requests
        self.connections = 0
        self.under_way = 0
        self.most_under_way = 0
        self.num_sent = 0  # words, of all answers
        self.cut = threading.Event()  # a client left in mid-answer
        self.url = ""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                length = next((int(h.split(":")[1]) for h in head.split("\r\n") if h.startswith("Content-Length")), 0)
                body = json.loads(await reader.readexactly(length)) if length else {}
                if not await self._answer(head.split(" ")[1], body, reader, writer) or not self.keep_alive:
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(
        self, path: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        if path.endswith("/completions"):
            self.under_way += 1
            self.most_under_way = max(self.most_under_way, self.under_way)
            try:
                return await self._complete(path, body, reader, writer)
            finally:
                self.under_way -= 1
        if path.endswith("/v1/models"):
            _plain(writer, 200, {"object": "list", "data": [{"id": "scripted"}]})
        elif path.endswith("/tokenize") and self.has_tokenize:
            words = body["prompt"].split()
            _plain(writer, 200, {"count": len(words), "tokens": [100 + len(word) for word in words]})
        elif path.endswith("/health"):
            _plain(writer, 200, {})
        elif path.endswith("/metrics") and self.metrics:
            text = self.metrics[0].encode()
            self.metrics = self.metrics[1:]
            writer.write(f"HTTP/1.1 200 X\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text)
        else:
            _plain(writer, 404, {"error": {"message": f"no {path}", "code": "not_found"}})
        return True

    async def _complete(
        self, path: str, body: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> bool:
        number = len(self.bodies)
        self.bodies.append(body)
        if number in self.refuse:
            _plain(writer, *self.refuse[number])
            return True
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        chat = "chat" in path
        if chat:
            _chunk(writer, _event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}))
        words = [self.words[i % len(self.words)] for i in range(self._length(body))]
        for index, word in enumerate(words):
            if index in (self.break_after, self.error_after):
                if index == self.error_after:
                    _chunk(writer, _event({"error": {"message": "out of luck", "code": 500}}))
                    _chunk(writer, b"")
                return index == self.error_after
            await asyncio.sleep(self.delay)
            if reader.at_eof() or writer.is_closing():
                self.cut.set()
                return False
            reason = "length" if index + 1 == len(words) else None
            piece = {"delta": {"content": word}} if chat else {"text": word}
            _chunk(writer, _event({"choices": [{"index": 0, **piece, "finish_reason": reason}]}))
            await writer.drain()
            self.num_sent += 1
        if self.usage:
            _chunk(writer, _event({"choices": [], "usage": self._usage(body, len(words))}))
        _chunk(writer, b"data: [DONE]\n\n")
        _chunk(writer, b"")
        await writer.drain()
        return True

    def _length(self, body: dict[str, Any]) -> int:
        asked = body.get("max_tokens") or body.get("max_completion_tokens") or len(self.words)
        return int(asked) if body.get("ignore_eos") else min(int(asked), len(self.words))

    @staticmethod
    def _usage(body: dict[str, Any], produced: int) -> dict[str, int]:
        prompt = body.get("prompt", body.get("messages", ""))
        return {"prompt_tokens": len(prompt), "completion_tokens": produced}


def _plain(writer: asyncio.StreamWriter, status: int, content: dict[str, Any]) -> None:
    body = json.dumps(content).encode()
    head = f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(content).encode() + b"\n\n"


def _chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


@contextmanager
def running(server: ScriptedServer) -> Iterator[ScriptedServer]:
    """`server.url` is set while it runs."""
    loop = asyncio.new_event_loop()
    listening = loop.run_until_complete(asyncio.start_server(server._serve, "127.0.0.1", 0))
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(_stop(listening), loop).result(240)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(240)
        loop.close()


async def _stop(listening: asyncio.Server) -> None:
    listening.close()
    others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)

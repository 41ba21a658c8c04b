"""Answers of a server, streamed into the terminal: for `chat --url` and `complete`."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cadence.entrypoints.cli.remote.client import Remote
from cadence.entrypoints.cli.shared.streaming import Answer

# Without max_tokens, an answer ends here after so many pieces (tokens, as a rule), as that of a model in this
# process does. Asking the server for so many would be refused where less of its context is left.
MOST_PIECES = 1024


@dataclass(frozen=True, slots=True)
class Server:
    """Where to ask, and for which model. Every answer has a connection of its own."""

    url: str
    api_key: str
    model: str

    @classmethod
    def find(cls, url: str, api_key: str, model: str) -> Server:
        """Without a name: the first model the server lists. RemoteError when it is not there."""
        if not model:
            model = asyncio.run(_first_model(url, api_key))
        return cls(url, api_key, model)

    def stream(self, path: str, fields: dict[str, Any], write: Callable[[str], None]) -> Answer:
        """One answer, to its end or to Ctrl-C, which closes the connection and so tells the server to stop."""
        body = {"model": self.model, "stream": True, "stream_options": {"include_usage": True}, **fields}
        listener = Listener(write, 0 if "max_tokens" in fields else MOST_PIECES)
        return asyncio.run(self._stream(path, json.dumps(body).encode(), listener))

    async def _stream(self, path: str, body: bytes, listener: Listener) -> Answer:
        loop = asyncio.get_running_loop()
        async with Remote.at(self.url, self.api_key) as remote:
            stream = loop.create_task(remote.stream(path, body, listener))
            loop.add_signal_handler(signal.SIGINT, stream.cancel)
            listener.stop = stream.cancel
            try:
                await stream
            except asyncio.CancelledError:
                listener.answer.finish_reason = "length" if listener.is_full else "abort"
            finally:
                loop.remove_signal_handler(signal.SIGINT)
        return listener.finish()


async def _first_model(url: str, api_key: str) -> str:
    async with Remote.at(url, api_key) as remote:
        return await remote.model_name()


class Listener:
    """Takes the events of one stream into an Answer. Reasoning is shown, and is no part of the answer."""

    def __init__(self, write: Callable[[str], None], most: int = 0) -> None:
        """most: pieces after which the stream is stopped; 0 = no limit."""
        self.answer = Answer()
        self.stop: Callable[[], object] = lambda: None  # ends the stream
        self._write = write
        self._most = most
        self._start = time.perf_counter()
        self._reasoned = False
        self._arrivals = 0

    def __call__(self, event: dict[str, Any], now: float) -> None:
        if usage := event.get("usage"):
            self.answer.prompt_tokens = int(usage.get("prompt_tokens") or 0)
            self.answer.output_tokens = int(usage.get("completion_tokens") or 0)
        for choice in event.get("choices") or ():
            if not self.is_full:
                self._take(choice, now)
        if self.is_full and not self.answer.finish_reason:
            self.stop()

    @property
    def is_full(self) -> bool:
        return bool(self._most) and self._arrivals >= self._most

    def _take(self, choice: dict[str, Any], now: float) -> None:
        delta = choice.get("delta") or {}
        reasoning = delta.get("reasoning") or delta.get("reasoning_content") or ""
        text = choice.get("text") or delta.get("content") or ""
        if (reasoning or text) and not self._arrivals:
            self.answer.first_token_s = now - self._start
        self._arrivals += bool(reasoning or text)
        if reasoning:
            self._reasoned = True
            self._write(reasoning)
        if text:
            if self._reasoned and not self.answer.text:
                self._write("\n\n")
            self.answer.text += text
            self._write(text)
        self.answer.finish_reason = choice.get("finish_reason") or self.answer.finish_reason

    def finish(self) -> Answer:
        self.answer.total_s = time.perf_counter() - self._start
        self.answer.output_tokens = self.answer.output_tokens or self._arrivals  # no usage after Ctrl-C
        return self.answer

"""The server's life as a process of its own, on uvloop and with small send buffers, over a fake engine: it starts in a
second.

python -m tests.server.fake_process MODEL_FOLDER '{"options": …, "llm": …, "hangs": false}'
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import uvloop

from cadence.config.server.serve_options import ServeOptions
from cadence.engine.log_queue import queue_output
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.exit_deadline import ExitDeadline
from cadence.entrypoints.server.replacement import bind_or_inherit
from cadence.entrypoints.server.server import ServerLifecycle
from tests.server.fake_llm import FakeLLM
from tests.server.helpers import ROOT


class HangingLLM(FakeLLM):
    """Its engine never stops."""

    async def shutdown(self, drain: bool) -> None:
        await super().shutdown(drain)
        await asyncio.sleep(3600)


class StuckMiddleware:
    """Holds the event loop for ever where the path says so."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/stuck":
            os.write(1, b"stuck\n")
            time.sleep(3600)
        await self._app(scope, receive, send)


async def serve(folder: Path, given: dict[str, Any]) -> int:
    options = ServeOptions(**given["options"])
    llm = (HangingLLM if given.get("hangs") else FakeLLM)(folder, **given.get("llm", {}))
    logs = queue_output()

    def last() -> None:
        print("the last", flush=True)
        logs.flush()

    bound, replacement = bind_or_inherit(options)
    replace = functools.partial(replacement.replace, last)
    life = ServerLifecycle(create_app(llm, options, logs), options, ExitDeadline(last), replace, replacement.handed)
    with bound:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)  # connections have it from here
        try:
            return await life.run(bound, lambda: print(bound.getsockname()[1], flush=True))
        finally:
            await life.end_engine()


class FakeProcess:
    """That process. `options` are the server's; use as a context manager."""

    def __init__(self, folder: Path, *, hangs: bool = False, delay: float = 0.0, **options: Any) -> None:
        self.address = ("127.0.0.1", 0)
        llm = {"max_model_len": 2048, "delay": delay}
        given = {"options": {**options, "port": 0}, "llm": llm, "hangs": hangs}
        words = [sys.executable, "-m", "tests.server.fake_process", str(folder), json.dumps(given)]
        self.process = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, env={**os.environ})

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=f"http://127.0.0.1:{self.address[1]}", timeout=240, trust_env=False, verify=False)

    def signal(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def read_until(self, line: str) -> None:
        """Of what it prints."""
        assert self.process.stdout is not None
        while (read := self.process.stdout.readline()) != f"{line}\n":
            assert read, "it has ended"

    def wait_for(self, condition: Callable[[httpx.Client], bool], seconds: float = 240.0) -> None:
        ends = time.monotonic() + seconds
        with self.client() as client:
            while not condition(client):
                assert time.monotonic() < ends, "it did not happen"
                time.sleep(0.02)

    def __enter__(self) -> FakeProcess:
        assert self.process.stdout is not None
        self.address = ("127.0.0.1", int(self.process.stdout.readline()))
        return self

    def __exit__(self, *error: object) -> None:
        self.process.kill()
        self.process.communicate(timeout=240)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        status = runner.run(serve(Path(sys.argv[1]), json.loads(sys.argv[2])))
    sys.exit(status)

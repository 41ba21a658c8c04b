"""Servers for tests: the application over a fake engine, in a thread; and the real thing, a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn
import uvloop

from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.http.sockets.connections import Connections
from cadence.entrypoints.server.routes.state import ServerState
from cadence.entrypoints.server.server import uvicorn_config
from tests.server.fake_llm import FakeLLM, save_fake_model

__all__ = ["FakeLLM", "RunningApp", "ServerProcess", "free_port", "run_app", "save_fake_model"]

ROOT = Path(__file__).parents[2]
START_S = 300.0  # a machine may be slow, and busy with other tests


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _client(url: str, **options: Any) -> httpx.Client:
    """Without TLS nothing need be read about whom to trust, which takes longer than most requests."""
    return httpx.Client(base_url=url, **{"trust_env": False, "verify": url.startswith("https:"), **options})


@dataclass(frozen=True)
class RunningApp:
    url: str
    port: int
    state: ServerState
    llm: FakeLLM
    loop: asyncio.AbstractEventLoop
    server: uvicorn.Server

    def connections(self) -> list[Any]:
        """The server's side of them."""
        return list(self.server.server_state.connections)

    def client(self, **options: Any) -> httpx.Client:
        return _client(self.url, **{"timeout": 240.0, **options})

    def do(self, function: Any, *arguments: Any) -> None:
        """Runs something on the server's event loop."""
        self.loop.call_soon_threadsafe(function, *arguments)

    def settle(self, seconds: float = 120.0) -> None:
        """Waits until no request is in flight."""
        ends = time.monotonic() + seconds
        while self.state.admission.in_flight and time.monotonic() < ends:
            time.sleep(0.005)


class QuickServer(uvicorn.Server):
    """Ends when it is told to, not when it next looks: most tests are shorter than that."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ended = asyncio.Event()

    async def main_loop(self) -> None:
        await self.on_tick(0)
        await self.ended.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for task in list(self.server_state.tasks):
            with contextlib.suppress(asyncio.CancelledError, TimeoutError):
                await asyncio.wait_for(task, 2.0)


@contextlib.contextmanager
def run_app(llm: FakeLLM, **options: Any) -> Iterator[RunningApp]:
    """`create_app` over `llm` on a free loopback port, by uvicorn as the real server runs it."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    port = bound.getsockname()[1]
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def main() -> None:
        settings = ServeOptions(**{"uvicorn_log_level": "critical", **options})
        app = create_app(llm, settings)  # type: ignore[arg-type]
        found["server"] = server = QuickServer(
            uvicorn_config(app, settings, Connections(settings.write_timeout, settings.max_connections))
        )
        url = f"{'https' if settings.ssl_certfile else 'http'}://127.0.0.1:{port}"
        found["app"] = RunningApp(url, port, app.state.server, llm, asyncio.get_running_loop(), server)
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        while not server.started and not serving.done():
            await asyncio.sleep(0.005)
        ready.set()
        await serving
        await llm.texts.close()

    thread = threading.Thread(target=_run, args=(main, ready, found))
    thread.start()
    try:
        assert ready.wait(240)
        if "error" in found:
            raise found["error"]
        yield found["app"]
    finally:
        if "server" in found:
            found["app"].do(found["server"].ended.set)
        thread.join(240)
        bound.close()


def _run(main: Any, ready: threading.Event, found: dict[str, Any]) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    except BaseException as error:
        found["error"] = error
    finally:
        ready.set()


class ServerProcess:
    """`cadence serve` as users run it. Use as a context manager; `stop` ends it by its pid."""

    def __init__(
        self, model: str | Path, *flags: str, environment: dict[str, str] | None = None, engine: str = ""
    ) -> None:
        """engine: one of `tests.server.engines`, instead of the real one."""
        self._log = tempfile.NamedTemporaryFile("w+", prefix="cadence-serve-", suffix=".log")  # noqa: SIM115
        module = ["tests.server.engines", "serve", engine] if engine else ["cadence.entrypoints.cli.main", "serve"]
        words = [sys.executable, "-m", *module, str(model), "--port", "0", *flags]
        self.process = subprocess.Popen(
            words,
            cwd=ROOT,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(environment or {})},
        )
        self.url = ""

    def wait_ready(self, seconds: float = START_S) -> Self:
        """Reads the address off the server's last line of its start."""
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for line in self.output().splitlines():
                if line.startswith("serving ") and " at " in line:
                    self.url = line.split(" at ")[1].split()[0]
                    return self
            if self.process.poll() is not None:
                raise RuntimeError(f"the server left with status {self.process.returncode}:\n{self.output()}")
            time.sleep(0.02)
        self.stop()
        raise TimeoutError(f"not ready after {seconds} s:\n{self.output()}")

    def output(self) -> str:
        return Path(self._log.name).read_text()

    def client(self, **options: Any) -> httpx.Client:
        return _client(self.url, **{"timeout": 240.0, **options})

    def signal(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    def wait(self, seconds: float = 240.0) -> int:
        return self.process.wait(seconds)

    def stop(self) -> int:
        """SIGTERM, again when that is not enough, and at last SIGKILL. Gives the exit status."""
        for number, patience in ((signal.SIGTERM, 60), (signal.SIGTERM, 60), (signal.SIGKILL, 60)):
            if self.process.poll() is None:
                self.signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                return self.wait(patience)
        raise RuntimeError("the server cannot be ended")

    def __enter__(self) -> Self:
        return self.wait_ready()

    def __exit__(self, *error: object) -> None:
        self.stop()
        self._log.close()

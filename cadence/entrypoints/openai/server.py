"""The server's life: take the address, start the engine, serve, drain, leave."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from cadence.config.args import EngineArgs
from cadence.core.errors import EngineDeadError
from cadence.engine.limits import SupervisorLimits
from cadence.engine.supervisor import ENGINE_COMMAND
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.openai import listen
from cadence.entrypoints.openai.app import check_parsers, create_app
from cadence.entrypoints.openai.http import HttpLimits, LimitedHttp
from cadence.entrypoints.openai.options import ServeOptions
from cadence.entrypoints.openai.outbox import Outbox
from cadence.entrypoints.openai.state import ServerState

KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that they are the ones who close them
START_PATIENCE = 6  # an engine that starts may be silent for this many times as long as one that is ready
LAST_BYTES_S = 5  # for answers that are made but not yet read, once nothing is in flight


def run_server(args: EngineArgs, options: ServeOptions, engine_command: Sequence[str] = ENGINE_COMMAND) -> int:
    """Serves until it is told to stop. The exit status: 0 after an orderly end, 1 otherwise."""
    began = time.perf_counter()
    check_parsers(options)
    bound = listen.bind(options)
    listen.allow_many_connections()
    with contextlib.closing(bound), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_start_and_serve(args, options, engine_command, bound, began))


async def _start_and_serve(
    args: EngineArgs, options: ServeOptions, engine_command: Sequence[str], bound: socket.socket, began: float
) -> int:
    silence = options.engine_heartbeat_timeout
    limits = SupervisorLimits(silence, START_PATIENCE * silence, options.engine_step_timeout)
    try:
        llm = await AsyncLLM.start(args, _say, engine_command=engine_command, limits=limits)
    except EngineDeadError as error:
        print(f"cadence serve: the engine did not start: {error}", file=sys.stderr)
        return 1
    url = listen.url_of(bound, options)

    def serving() -> None:
        _say(f"serving {args.model} at {url} ({time.perf_counter() - began:.2f} s from start)")

    try:
        return await ServerLife(create_app(llm, options), options).run(bound, serving)
    finally:
        await llm.shutdown(drain=False)


def _say(line: str) -> None:
    print(line, flush=True)


class HttpServer(uvicorn.Server):
    """Signals are not its business."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class ServerLife:
    """From the first connection to the exit status."""

    def __init__(self, app: FastAPI, options: ServeOptions) -> None:
        self._state: ServerState = app.state.server
        self._options = options
        self._server = HttpServer(uvicorn_config(app, options))
        self._signals = 0
        self._status = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, bound: socket.socket, on_serving: Callable[[], None]) -> int:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.on_signal)
        gc.collect()
        gc.freeze()  # what the start made lives as long as the process
        self._spawn(self._watch_engine())
        self._spawn(self._announce(on_serving))
        try:
            await self._server.serve(sockets=[bound])
        except OSError as error:  # another server took the address since it was bound
            print(f"cadence serve: {listen.in_use(self._options)} ({error.strerror})", file=sys.stderr)
            self._status = 1
        finally:
            for task in self._tasks:
                task.cancel()
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)
        return self._status

    def on_signal(self) -> None:
        """The first: no new requests, those in flight finish. The second: they end now, with an error."""
        self._signals += 1
        if self._signals == 1:
            self._state.admission.drain()
            _say(f"draining: {self._state.admission.in_flight} requests in flight")
            self._spawn(self._drain())
        elif self._signals == 2:
            self._spawn(self._abort("stopped by a second signal"))

    async def _drain(self) -> None:
        try:
            async with asyncio.timeout(self._options.shutdown_timeout or None):
                await self._state.admission.wait_idle()
        except TimeoutError:
            await self._abort(f"stopped after the shutdown timeout of {self._options.shutdown_timeout:g} s")
        self._server.should_exit = True

    async def _abort(self, why: str) -> None:
        _say(f"{why}: {self._state.admission.in_flight} requests end with an error")
        self._status = 1
        await self._state.llm.shutdown(drain=False)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_BYTES_S):
                await self._state.admission.wait_idle()
        self._server.should_exit = True

    async def _watch_engine(self) -> None:
        await self._state.llm.dead.wait()
        if self._status:
            return  # we ended it ourselves
        self._state.admission.drain()
        self._status = 1
        try:
            await self._state.llm.check_health()
        except EngineDeadError as error:
            print(f"cadence serve: the engine is gone: {error}", file=sys.stderr, flush=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_BYTES_S):
                await self._state.admission.wait_idle()
        self._server.should_exit = True

    async def _announce(self, on_serving: Callable[[], None]) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        on_serving()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def uvicorn_config(app: FastAPI, options: ServeOptions) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=functools.partial(LimitedHttp, HttpLimits.of(options), Outbox()),  # type: ignore[arg-type]
        ws="none",
        lifespan="off",
        backlog=4096,
        log_level=options.uvicorn_log_level,
        access_log=not options.disable_uvicorn_access_log,
        server_header=False,
        root_path=options.root_path,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=LAST_BYTES_S,
        ssl_keyfile=options.ssl_keyfile,
        ssl_certfile=options.ssl_certfile,
        ssl_ca_certs=options.ssl_ca_certs,
        ssl_cert_reqs=options.ssl_cert_reqs,
        ssl_ciphers=options.ssl_ciphers or "TLSv1",
    )

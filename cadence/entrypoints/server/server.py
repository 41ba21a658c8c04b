"""The server's process: bind the address, start the engine, serve, drain, exit."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import uvicorn
import uvloop
from fastapi import FastAPI

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import EngineDeadError
from cadence.core.memory import map_large_blocks
from cadence.engine.log_format import escaped, set_up_logging
from cadence.engine.log_queue import LogQueue, queue_output
from cadence.engine.supervise.limits import SupervisorLimits
from cadence.engine.supervise.supervisor import ENGINE_COMMAND
from cadence.entrypoints.async_llm import AsyncLLM
from cadence.entrypoints.conversation import read_template
from cadence.entrypoints.server.api_servers import serve_many
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.exit_deadline import NO_EXIT_DEADLINE, ExitDeadline
from cadence.entrypoints.server.http.middleware import load_middleware
from cadence.entrypoints.server.http.outbox import Outbox
from cadence.entrypoints.server.http.sockets import listen
from cadence.entrypoints.server.http.sockets.connection import BoundedHttpProtocol, HttpLimits, ResumedRequest
from cadence.entrypoints.server.http.sockets.connections import Connections
from cadence.entrypoints.server.http.sockets.tls import TlsConnection, tls_context
from cadence.entrypoints.server.loop_watchdog import LoopWatchdog
from cadence.entrypoints.server.replacement import NO_REPLACEMENT, Replacement, TakeUnfinished, ToldToEnd
from cadence.entrypoints.server.resume.answer import resumed_request
from cadence.entrypoints.server.resume.hand_over import HandOver
from cadence.entrypoints.server.resume.suspects import Suspects
from cadence.entrypoints.server.resume.unfinished import HandedOver
from cadence.entrypoints.server.served import Served
from cadence.entrypoints.server.start_signals import StartSignals, StoppedWhileStarting
from cadence.entrypoints.server.stop_signals import StopSignals

KEEP_ALIVE_S = 65  # longer than clients keep idle connections, so that they are the ones who close them
START_HEARTBEAT_FACTOR = 6  # an engine that starts may be silent for this many times as long as one that is ready
DRAIN_WRITE_S = 5.0  # without progress, after which a client that does not read is no longer waited for at the end
FLUSH_S = 5  # for answers that are made but not yet read, once nothing is in flight
ERROR_EVENTS_S = 0.7  # for the error events of requests that are ended
ABORT_EXIT_S = 1.5  # from the decision to end requests to the end of the process, whatever hangs
EXIT_S = 15.0  # from the last answer to the end of the process: an engine may take a while to stop
LOG_FLUSH_S = 0.2  # for log lines, when the process ends hard


def run_server(
    args: EngineArgs,
    options: ServeOptions,
    bound: socket.socket,
    engine_command: Sequence[str] = ENGINE_COMMAND,
    replacement: Replacement = NO_REPLACEMENT,
) -> int:
    """Serves until it is told to stop. The exit status: 0 after an orderly end, 1 otherwise.

    bound: as `listen.bind` returns it; it is closed in the end. replacement: of this server when it is stuck
    """
    began = time.perf_counter()
    with contextlib.closing(bound), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        logs = prepare_process(options)
        return runner.run(_start_and_serve(args, options, engine_command, (bound, replacement), (began, logs)))


def prepare_process(options: ServeOptions) -> LogQueue:
    """Raises what is wrong with files that the options name."""
    load_middleware(options.middleware)
    read_template(options.chat_template)
    if options.ssl_certfile:
        tls_context(options)
    listen.allow_many_connections()
    logs = queue_output()
    set_up_logging(env.log_level())
    return logs


async def _start_and_serve(
    args: EngineArgs,
    options: ServeOptions,
    engine_command: Sequence[str],
    listener: tuple[socket.socket, Replacement],
    process: tuple[float, LogQueue],
) -> int:
    (bound, replacement), (began, logs) = listener, process
    silence = options.engine_heartbeat_timeout
    limits = SupervisorLimits(silence, START_HEARTBEAT_FACTOR * silence, options.engine_step_timeout)
    url = listen.url_of(bound, options)

    def serving() -> None:
        say(f"serving {args.model} at {url} ({time.perf_counter() - began:.2f} s from start)")

    if options.api_server_count > 1:
        return await serve_many(args, options, (engine_command, limits), bound, serving)
    start = AsyncLLM.start(args, say, engine_command=engine_command, limits=limits)
    try:
        llm = await StartSignals(ExitDeadline(lambda: logs.flush(LOG_FLUSH_S)), say).run(start)
    except StoppedWhileStarting:
        return 0
    except EngineDeadError as error:
        print(escaped(f"cadence serve: the engine did not start: {error}"), file=sys.stderr)
        return 1

    return await serve_until_told(create_app(llm, options, logs), options, (bound, replacement, logs), serving)


async def serve_until_told(
    app: FastAPI,
    options: ServeOptions,
    process: tuple[socket.socket, Replacement, LogQueue],
    on_serving: Callable[[], None],
) -> int:
    """-> the exit status. Its engines are gone then."""
    bound, replacement, logs = process
    served: Served = app.state.served

    def last() -> None:
        """A stopped engine would not notice that its front is gone."""
        for pid in filter(None, served.engine_pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        logs.flush(LOG_FLUSH_S)

    replace = functools.partial(replacement.replace, last)
    life = ServerLifecycle(app, options, ExitDeadline(last), replace, replacement.handed)
    try:
        return await life.run(bound, on_serving)
    finally:
        await life.end_engine()


def _do_nothing(take_unfinished: TakeUnfinished) -> None:
    pass


def say(line: str) -> None:
    print(escaped(line), flush=True)


class HttpServer(uvicorn.Server):
    """Leaves signals to `ServerLifecycle`."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def adopt(self, connection: socket.socket, resumed: ResumedRequest | None = None) -> None:
        """Serves a connection that was accepted elsewhere. resumed: it has begun elsewhere with this request"""
        given = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        with contextlib.suppress(OSError):  # the client is gone
            make = functools.partial(self.config.http_protocol_class, **given)
            _, protocol = await asyncio.get_running_loop().connect_accepted_socket(make, connection)
            if resumed is not None and isinstance(protocol, BoundedHttpProtocol):
                protocol.resume(resumed)


class ServerLifecycle:
    """From the first connection to the exit status."""

    def __init__(
        self,
        app: FastAPI,
        options: ServeOptions,
        deadline: ExitDeadline = NO_EXIT_DEADLINE,
        replace: Callable[[TakeUnfinished], None] = _do_nothing,
        handed: Sequence[HandedOver] = (),
    ) -> None:
        """replace: the process, when it is stuck; where it returns, the process ends. handed: answers to go on with"""
        self._served: Served = app.state.served
        self._options = options
        self._deadline = deadline
        self._replace = replace
        self._handed = handed
        self._connections = Connections(options.write_timeout, options.max_connections)
        self._server = HttpServer(uvicorn_config(app, options, self._connections))
        self._signals = 0
        self._status = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._engine_end: asyncio.Task[None] | None = None

    async def run(self, bound: socket.socket | None, on_serving: Callable[[], None]) -> int:
        """bound: None = connections come by `adopt`"""
        signals = StopSignals(self.on_signal)
        map_large_blocks()  # bodies and answers of megabytes come and go
        gc.collect()
        gc.freeze()  # what the start made lives as long as the process
        self._spawn(self._watch_engine())
        self._spawn(self._announce(on_serving))
        try:
            with LoopWatchdog(self._options.event_loop_timeout, functools.partial(self._on_stuck, signals)):
                await self._server.serve(sockets=[bound] if bound is not None else [])
        except OSError as error:  # another server took the address since it was bound
            print(f"cadence serve: {listen.in_use(self._options)} ({error.strerror})", file=sys.stderr, flush=True)
            self._status = 1
        finally:
            for task in self._tasks:
                task.cancel()
        return self._status

    def adopt(self, connection: socket.socket) -> None:
        """Serves a connection that another process has accepted."""
        self._spawn(self._server.adopt(connection))

    def resume(self, handed: Sequence[HandedOver]) -> None:
        """Goes on with what another process has begun."""
        for one in handed:
            request = resumed_request(one.answer, self._served.llm_of)
            self._spawn(self._server.adopt(socket.socket(fileno=one.descriptor), request))

    def on_signal(self) -> None:
        """The first: no new requests, those in flight finish. The second: they end now, with an error. The third: so
        does the process."""
        self._signals += 1
        if self._signals == 1:
            self._served.drain()
            self._connections.hurry(DRAIN_WRITE_S)
            say(f"draining: {self._served.in_flight} requests in flight")
            self._spawn(self._drain())
        elif self._signals == 2:
            self._spawn(self._abort(1, "stopped by a second signal"))
        else:
            self._deadline.now(1)

    def _on_stuck(self, signals: StopSignals) -> None:
        """In another thread. A process that was told to end is not replaced."""
        if not (self._signals or signals.is_pending()):
            self._replace(functools.partial(self._take_unfinished, signals))
        self._deadline.now(1)

    def _take_unfinished(self, signals: StopSignals) -> list[HandedOver]:
        """The last but little before the process is another program, which would not know of a signal."""
        suspects = Suspects(threading.main_thread().ident or 0)
        handed = HandOver(self._served.llm_of, suspects).take(self._server.server_state.connections)
        if signals.is_pending():
            raise ToldToEnd
        return handed

    async def end_engine(self) -> None:
        """The readers of what still runs get an error at once; the engine may take a while to leave. Signals are still
        heard."""
        if self._engine_end is None:
            self._engine_end = asyncio.ensure_future(self._served.end_engines())
        await asyncio.shield(self._engine_end)

    async def _drain(self) -> None:
        if await self._is_idle_within(self._options.shutdown_timeout or None):
            self._exit(EXIT_S)
        else:
            await self._abort(0, f"stopped after the shutdown timeout of {self._options.shutdown_timeout:g} s")

    async def _abort(self, status: int, why: str) -> None:
        """status: of the process. A client that does not read gets no error event: neither it nor the engine is waited
        for."""
        say(f"{why}: {self._served.in_flight} requests end with an error")
        self._status = max(self._status, status)
        self._exit(ABORT_EXIT_S)
        self._spawn(self.end_engine())
        await self._is_idle_within(ERROR_EVENTS_S)
        self._abort_connections()

    async def _watch_engine(self) -> None:
        why = await self._served.wait_lost()
        if self._engine_end is not None:
            return  # we ended it ourselves
        self._served.drain()
        self._status = 1
        if why:
            print(escaped(f"cadence serve: the engine is gone: {why}"), file=sys.stderr, flush=True)
        await self._is_idle_within(FLUSH_S)
        self._exit(EXIT_S)

    async def _is_idle_within(self, seconds: float | None) -> bool:
        try:
            async with asyncio.timeout(seconds):
                await self._served.wait_idle()
        except TimeoutError:
            return False
        return True

    def _exit(self, seconds: float) -> None:
        """Answers that are on their way may still be read, but the process is gone after `seconds`."""
        self._deadline.within(seconds, self._status)
        self._server.should_exit = True

    def _abort_connections(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.abort()  # type: ignore[union-attr]

    async def _announce(self, on_serving: Callable[[], None]) -> None:
        while not self._server.started:
            await asyncio.sleep(0.005)
        if unfinished := sum(bool(one.answer.content) for one in self._handed):
            say(f"going on with {unfinished} unfinished answers")
        self.resume(self._handed)
        on_serving()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class QuietPaths(logging.Filter):
    """Drops the lines of the access log that are about these paths. Their arguments: client, method, path, …"""

    def __init__(self, paths: Iterable[str]) -> None:
        super().__init__()
        self._paths = frozenset(paths)

    def filter(self, record: logging.LogRecord) -> bool:
        words = record.args if isinstance(record.args, tuple) else ()
        return len(words) < 3 or str(words[2]).partition("?")[0] not in self._paths


def uvicorn_config(app: FastAPI, options: ServeOptions, connections: Connections) -> uvicorn.Config:
    """Without uvicorn's TLS and its log handlers: both are ours."""
    if quiet := [path.strip() for path in options.disable_access_log_for_endpoints.split(",") if path.strip()]:
        logging.getLogger("uvicorn.access").addFilter(QuietPaths(quiet))
    return uvicorn.Config(
        Outbox(app),
        http=_protocol_factory(options, connections),  # type: ignore[arg-type]
        ws=BoundedHttpProtocol.open_websocket,  # type: ignore[arg-type]
        ws_max_size=options.max_body_bytes,
        ws_per_message_deflate=False,  # it would be done on the event loop, and a little can become very much
        lifespan="off",
        backlog=4096,
        log_config=None,
        log_level=options.uvicorn_log_level,
        access_log=not options.disable_uvicorn_access_log,
        server_header=False,
        root_path=options.root_path,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=FLUSH_S,
    )


def _protocol_factory(options: ServeOptions, connections: Connections) -> Callable[..., asyncio.Protocol]:
    limits = HttpLimits.of(options)
    if not options.ssl_certfile:
        return functools.partial(BoundedHttpProtocol, limits, connections)
    context = tls_context(options)

    def make(**given: Any) -> asyncio.Protocol:
        return TlsConnection(context, connections, BoundedHttpProtocol(limits, connections, **given))

    return make

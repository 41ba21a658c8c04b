"""The process of a server with several models: it serves at once, and loads those that are wanted from the start."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Sequence

import uvloop

from cadence.config.server.models_file import ModelPlan
from cadence.config.server.serve_options import ServeOptions
from cadence.engine.log_queue import LogQueue
from cadence.engine.supervise.supervisor import ENGINE_COMMAND
from cadence.entrypoints.server.http.sockets import listen
from cadence.entrypoints.server.replacement import Replacement
from cadence.entrypoints.server.server import START_HEARTBEAT_FACTOR, prepare_process, say, serve_until_told
from cadence.entrypoints.server.several.app import create_models_app
from cadence.entrypoints.server.several.models import ServedModels
from cadence.entrypoints.server.several.served_model import EngineStart


def run_models_server(
    plans: Sequence[ModelPlan],
    options: ServeOptions,
    budget: int,
    listener: tuple[socket.socket, Replacement],
    engine_command: Sequence[str] = ENGINE_COMMAND,
) -> int:
    """As `server.run_server`. budget: bytes that the models in memory may take together"""
    began = time.perf_counter()
    bound, replacement = listener
    with contextlib.closing(bound), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        logs = prepare_process(options)
        start = EngineStart(engine_command, START_HEARTBEAT_FACTOR, say)
        return runner.run(_serve((plans, budget, start), options, (bound, replacement, logs), began))


async def _serve(
    what: tuple[Sequence[ModelPlan], int, EngineStart],
    options: ServeOptions,
    process: tuple[socket.socket, Replacement, LogQueue],
    began: float,
) -> int:
    plans, budget, start = what
    models = ServedModels(plans, options, budget, start, process[2])
    url = listen.url_of(process[0], options)
    loading: list[asyncio.Future[None]] = []  # what keeps the task

    async def load_first() -> None:
        """One that fails is told of, and can be asked for again."""
        for name in await models.load_first():
            say(f"{name}: not loaded: {models.entry(name).why}")
        if models.is_draining:
            return
        names = ", ".join(models.models)
        say(f"serving {names} at {url} ({time.perf_counter() - began:.2f} s from start)")

    def on_serving() -> None:
        loading.append(asyncio.ensure_future(load_first()))

    try:
        return await serve_until_told(create_models_app(models, options), options, process, on_serving)
    finally:
        for task in loading:
            task.cancel()

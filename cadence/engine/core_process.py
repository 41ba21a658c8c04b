"""The engine in a process of its own: the loop of `EngineCore` behind one socket.

    python -m cadence.engine.core_process ADDRESS

The front binds ADDRESS and sends the engine's options first, as JSON; then `ToEngine` parcels. This process answers
with `FromEngine` parcels. It leaves when told to, when the front is gone, or when a step fails.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import deque
from dataclasses import replace
from typing import Any

import zmq

from cadence.config import env
from cadence.config.args import EngineArgs
from cadence.core.codec import decode_to_engine, encode
from cadence.core.engine_state import EngineState
from cadence.core.errors import CadenceError
from cadence.core.messages import FromEngine, Introduction, ToEngine
from cadence.engine.build import EngineParts, build_engine
from cadence.engine.core import EngineCore
from cadence.engine.log_format import set_up_logging
from cadence.engine.log_queue import queue_output
from cadence.executor.worker import device_caps

IDLE_POLL_MS = 200
PARENT_POLL_S = 0.5
HEARTBEAT_S = 0.5  # a long prompt takes many steps without a token: say that they happen


class CoreLoop:
    """Orders in, a step, news out; sleeps on the socket while there is nothing to do."""

    def __init__(self, core: EngineCore, socket: zmq.Socket[bytes]) -> None:
        self._core = core
        self._socket = socket
        self._num_steps = 0
        self._step_seconds: deque[float] = deque(maxlen=64)
        self._last_sent = 0.0
        self._running = True

    def run(self) -> None:
        while self._running:
            self._take_orders(0 if self._core.has_unfinished() else IDLE_POLL_MS)
            if self._core.has_unfinished():
                self._step()

    def _take_orders(self, wait_ms: int) -> None:
        while self._running and self._socket.poll(wait_ms):
            self._obey(decode_to_engine(self._socket.recv()))
            wait_ms = 0

    def _obey(self, orders: ToEngine) -> None:
        for request in orders.add:
            self._core.add(request)
        if orders.abort:
            self._core.abort(orders.abort, orders.abort_reason)
        if orders.call:
            self._answer(orders.call, orders.call_id)
        self._running = not orders.stop

    def _answer(self, call: str, call_id: int) -> None:
        if call in ("state", "stats"):
            self._send(FromEngine(call_id=call_id, state=self._state(with_blocks=call == "state")))
        elif call == "reset_prefix_cache":
            self._send(FromEngine(call_id=call_id, done=self._core.reset_prefix_cache()))

    def _step(self) -> None:
        start = time.perf_counter()
        updates = self._core.step()
        self._step_seconds.append(time.perf_counter() - start)
        self._num_steps += 1
        if updates or time.monotonic() - self._last_sent > HEARTBEAT_S:
            self._send(FromEngine(updates=updates))

    def _state(self, with_blocks: bool) -> EngineState:
        snapshot = self._core.snapshot(with_blocks)
        return replace(snapshot, num_steps=self._num_steps, step_seconds=list(self._step_seconds))

    def _send(self, news: FromEngine) -> None:
        self._last_sent = time.monotonic()
        self._socket.send(encode(news))


def leave_with_parent(address: str) -> None:
    """An engine without its front is of no use: when the parent is gone, so is this process, whatever it is doing,
    and the socket's folder, which the parent can no longer remove."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
        shutil.rmtree(os.path.dirname(address.removeprefix("ipc://")), ignore_errors=True)
        os._exit(3)

    threading.Thread(target=watch, daemon=True).start()


def _introduction(parts: EngineParts, args: EngineArgs) -> Introduction:
    caps = device_caps(args.device)
    return Introduction(
        num_blocks=parts.num_blocks,
        max_model_len=parts.config.model.max_model_len,
        vocab_size=parts.vocab_size,
        device_name=caps.name,
        kind=caps.kind,
        total_memory=caps.total_memory,
        native_bf16=caps.native_bf16,
        native_fp16=caps.native_fp16,
    )


def main(address: str) -> int:
    leave_with_parent(address)
    queue_output()
    set_up_logging(env.log_level())
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the front decides
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.PAIR)
    socket.setsockopt(zmq.LINGER, 1000)
    socket.connect(address)
    options: dict[str, Any] = json.loads(socket.recv())
    try:
        args = EngineArgs(**options)
        parts = build_engine(args)
        socket.send(encode(FromEngine(introduction=_introduction(parts, args))))
        CoreLoop(parts.core, socket).run()
    except Exception as error:
        kind = "" if isinstance(error, CadenceError) else f"{type(error).__name__}: "
        socket.send(encode(FromEngine(fatal=f"{kind}{error}")))
        socket.close()
        if not kind:
            return 1
        raise
    socket.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))

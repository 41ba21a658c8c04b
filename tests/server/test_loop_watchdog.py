"""An event loop that is stuck ends its process, and the log says where; one that is busy, or was stopped, does not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from cadence.entrypoints.server.exit_deadline import ExitDeadline
from cadence.entrypoints.server.loop_watchdog import LoopWatchdog
from tests.server.helpers import ServerProcess

WAIT_S = 60.0


class NotedExit(ExitDeadline):
    """Instead of the end of the process."""

    def __init__(self) -> None:
        super().__init__(lambda: None)
        self.came = threading.Event()
        self.status = 0

    def now(self, status: int) -> None:
        self.status = status
        self.came.set()


def stick(until: threading.Event) -> None:
    assert until.wait(WAIT_S), "nobody ended it"


class StuckMiddleware:
    """Holds the event loop for ever where the path says so."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope.get("path") == "/stuck":
            time.sleep(10 * WAIT_S)
        await self._app(scope, receive, send)


def test_a_stuck_loop_ends_the_process_and_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    exit_ = NotedExit()

    async def run() -> None:
        with LoopWatchdog(0.05, exit_, tick_s=0.01):
            await asyncio.sleep(0)
            stick(exit_.came)

    asyncio.run(run())
    assert exit_.status == 1
    assert "in stick" in capfd.readouterr().err


def watched(limit_s: float, work: Callable[[NotedExit], None]) -> NotedExit:
    """With 200 ticks of the watchdog, in which the loop has its turns, or is not watched."""
    exit_ = NotedExit()

    async def run() -> None:
        with LoopWatchdog(limit_s, exit_, tick_s=0.001):
            for _ in range(200):
                await asyncio.sleep(0.001)
            work(exit_)

    asyncio.run(run())
    return exit_


def test_a_loop_that_turns_goes_on() -> None:
    assert not watched(30.0, lambda exit_: None).came.is_set()


def test_without_a_limit_nothing_is_watched() -> None:
    assert not watched(0.0, lambda exit_: time.sleep(0.05)).came.is_set()


@pytest.mark.engine
def test_a_server_that_is_stuck_ends(tiny_model: Any) -> None:
    flags = ("--event-loop-timeout", "2", "--middleware", "tests.server.test_loop_watchdog.StuckMiddleware")
    with ServerProcess(tiny_model("llama"), *flags, engine="toy") as server:
        with server.client(timeout=WAIT_S) as client, pytest.raises(httpx.TransportError):
            client.get("/stuck")
        assert server.process.wait(WAIT_S) == 1
        assert "had no turn for 2 s" in server.output()

"""A server whose event loop is stuck is replaced, and the log says where; one that is busy, or was stopped, is not."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from cadence.config import env
from cadence.config.server.serve_options import ServeOptions
from cadence.entrypoints.server.app import create_app
from cadence.entrypoints.server.loop_watchdog import LoopWatchdog
from cadence.entrypoints.server.replacement import MAX_REPLACEMENTS, Replacement, ToldToEnd, bind_or_inherit
from cadence.entrypoints.server.resume.unfinished import HandedOver
from cadence.entrypoints.server.server import ServerLifecycle
from cadence.entrypoints.server.stop_signals import StopSignals
from tests.server.fake_llm import FakeLLM
from tests.server.fake_process import FakeProcess
from tests.server.helpers import ROOT, save_fake_model

WAIT_S = 240.0
# The regular expression takes longer than a life, and no other thread runs meanwhile.
BAD_REGEX = """
import asyncio, re
from cadence.entrypoints.server.loop_watchdog import LoopWatchdog

async def stuck_in_c():
    with LoopWatchdog(0.2, lambda: print("the thread")):
        await asyncio.sleep(0.2)
        re.match("(a+)+$", "a" * 60 + "b")

asyncio.run(stuck_in_c())
"""


def stick(until: threading.Event) -> None:
    assert until.wait(WAIT_S), "nobody noticed it"


def test_a_stuck_loop_is_noticed_and_the_log_says_where(capfd: pytest.CaptureFixture[str]) -> None:
    noticed = threading.Event()

    async def run() -> None:
        with LoopWatchdog(0.05, noticed.set):
            await asyncio.sleep(0)
            stick(noticed)

    asyncio.run(run())
    assert "in stick" in capfd.readouterr().err


def watched(limit_s: float, work: Callable[[], None]) -> bool:
    """While the loop has turns, and then during `work` -> whether it counted as stuck"""
    noticed = threading.Event()

    async def run() -> None:
        with LoopWatchdog(limit_s, noticed.set):
            for _ in range(200):
                await asyncio.sleep(0.001)
            work()

    asyncio.run(run())
    return noticed.is_set()


def test_a_loop_that_turns_goes_on() -> None:
    assert not watched(30.0, lambda: None)


def test_without_a_limit_nothing_is_watched() -> None:
    assert not watched(0.0, lambda: time.sleep(0.05))


def test_the_timer_for_code_that_lets_no_thread_run_ends_with_the_watchdog() -> None:
    watched(30.0, lambda: None)
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)


def test_code_that_lets_no_thread_run_ends_the_process_and_says_where() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", BAD_REGEX], cwd=ROOT, capture_output=True, text=True, timeout=WAIT_S, check=False
    )
    assert ended.returncode == -signal.SIGPROF
    assert "in stuck_in_c" in ended.stderr and not ended.stdout


def test_a_signal_is_seen_before_the_loop_reads_it() -> None:
    heard: list[bool] = []

    async def run() -> None:
        signals = StopSignals(lambda: heard.append(signals.is_pending()))
        assert not signals.is_pending()
        signal.raise_signal(signal.SIGTERM)
        assert signals.is_pending() and not heard
        while not heard:
            await asyncio.sleep(0)

    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    try:
        asyncio.run(run())
    finally:
        signal.set_wakeup_fd(-1)
        for number, handler in zip((signal.SIGTERM, signal.SIGINT), before, strict=True):
            signal.signal(number, handler)
    assert heard == [False]


class NoExec:
    """In place of `os.execve`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.environments: list[dict[str, str]] = []
        monkeypatch.setattr("os.execve", lambda path, command, environment: self.environments.append(environment))


def test_the_replacement_has_the_socket_and_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    executed, lasts = NoExec(monkeypatch), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as bound:
        Replacement(["python"], bound, MAX_REPLACEMENTS - 1).replace(lambda: lasts.append("last"))
        for name, value in executed.environments[0].items() - env.replaced_environment(0, 0).items():
            monkeypatch.setenv(name, value)
        inherited, replacement = bind_or_inherit(ServeOptions())
        assert inherited.getsockname() == bound.getsockname() and not inherited.get_inheritable()
        assert lasts == ["last"]
        assert env.take_replaced() == (-1, 0, -1)
        replacement.replace(lambda: lasts.append("again"))
        inherited.detach()
    assert len(executed.environments) == 1 and lasts == ["last"]  # it was replaced too often


def test_a_signal_that_comes_while_answers_are_taken_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    executed = NoExec(monkeypatch)

    def take() -> list[HandedOver]:
        raise ToldToEnd

    with socket.create_server(("127.0.0.1", 0)) as bound:
        Replacement(["python"], bound, 0).replace(lambda: None, take)
    assert not executed.environments


def test_a_server_sees_the_signal_when_it_has_taken_the_answers(tmp_path: Path) -> None:
    class Signals(StopSignals):
        def __init__(self) -> None: ...

        def is_pending(self) -> bool:
            return True

    llm: Any = FakeLLM(save_fake_model(tmp_path))
    life = ServerLifecycle(create_app(llm, ServeOptions()), ServeOptions())
    with pytest.raises(ToldToEnd):
        life._take_unfinished(Signals())


@pytest.mark.engine
def test_a_stuck_server_is_replaced_unless_it_was_told_to_end(tmp_path: Path) -> None:
    options: dict[str, Any] = {"event_loop_timeout": 1.0, "middleware": ["tests.server.fake_process.StuckMiddleware"]}
    gone = (httpx.NetworkError, httpx.RemoteProtocolError)
    with FakeProcess(save_fake_model(tmp_path), **options) as server, server.client() as client:
        with pytest.raises(gone):
            client.get("/stuck", timeout=WAIT_S)
        assert client.get("/livez", timeout=WAIT_S).status_code == 200
        assert server.process.poll() is None
        server.read_until(str(server.address[1]))  # which the replacement prints
        with socket.create_connection(server.address, WAIT_S) as stuck:
            stuck.sendall(b"GET /stuck HTTP/1.1\r\nHost: a\r\n\r\n")
            server.read_until("stuck")
            server.signal()
            assert server.process.wait(WAIT_S) == 1

"""A process that this one starts, and the one way to end it: it has a moment to leave, then it is killed."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.config.env import bare_environment
from cadence.process.ended import how_ended

KILL_S = 5.0  # for a killed process to be gone; one that the kernel holds on to is left alone

logger = logging.getLogger("cadence.process")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a process is started."""

    command: Sequence[str]
    name: str  # of the process, in sentences
    environment: Mapping[str, str] | None = None  # None = this process's
    inherited: Sequence[int] = ()  # descriptors that it has under the same numbers
    own_session: bool = False  # signals of a terminal do not reach it
    is_silent: bool = False  # what it prints goes nowhere

    def options(self, stdin: int) -> dict[str, Any]:
        """Of `subprocess` and of asyncio."""
        output = subprocess.DEVNULL if self.is_silent else None
        return {
            "stdin": stdin,
            "stdout": output,
            "stderr": output,
            "env": self.environment,
            "pass_fds": tuple(self.inherited),
            "start_new_session": self.own_session,
        }


def module_command(module: str) -> tuple[str, ...]:
    return sys.executable, "-m", module


def sandboxed(module: str, name: str) -> Launch:
    """For what may be slow, run out of memory or crash: it knows no secrets, and sets itself limits (`sandbox`)."""
    return Launch(module_command(module), name, bare_environment(), own_session=True, is_silent=True)


class Child:
    """One that a thread waits for. It ends with the thread that starts it."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], wire: socket.socket) -> None:
        self.name = name
        self.wire = wire  # our end of it
        self._process = process

    @classmethod
    def start(cls, launch: Launch) -> Child:
        """Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            process = subprocess.Popen(launch.command, **launch.options(theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(launch.name, process, ours)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None = it runs."""
        return self._process.poll()

    def wait(self) -> int:
        return self._process.wait()

    def kill(self) -> None:
        """Ends also what is stopped (SIGSTOP)."""
        self._process.kill()

    def end(self) -> None:
        """Kills it and gives everything back."""
        self.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_S)
        self.wire.close()


def end_all(children: Sequence[Child]) -> None:
    """All are killed before one is waited for."""
    for child in children:
        child.kill()
    for child in children:
        child.end()


class AsyncChild:
    """One that an event loop waits for. The wire is the caller's."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self._process = process
        self.exit = asyncio.ensure_future(process.wait())

    @classmethod
    async def start(cls, launch: Launch) -> tuple[AsyncChild, socket.socket]:
        """-> the process and our end of its wire. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(*launch.command, **launch.options(theirs.fileno()))
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        return cls(launch.name, process), ours

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def status(self) -> int | None:
        """None = it runs."""
        return self._process.returncode

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def kill(self) -> None:
        """Ends also what is stopped (SIGSTOP)."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def end(self, grace_s: float) -> str:
        """Waits for its exit, kills it when that does not come. -> how it ended"""
        if not await self._exits_within(grace_s):
            self.kill()
            if not await self._exits_within(KILL_S):
                logger.error("%s %d cannot be killed; it is left alone", self.name, self.pid)
        self.exit.cancel()
        return how_ended(self.name, self.status)

    async def _exits_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self.exit}, timeout=seconds)
        return bool(done)

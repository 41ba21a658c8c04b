"""One engine process, seen from the front: make it, send commands, receive messages, notice its death, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from cadence.config.env import engine_environment
from cadence.core.codec import encode
from cadence.core.messages import FromEngine, ToEngine
from cadence.engine.channel import framed
from cadence.engine.descriptors import DescriptorReserve
from cadence.engine.engine_link import EngineLink

logger = logging.getLogger("cadence.engine")

EXIT_S = 1.0  # for a process whose end of the channel is closed, before it is killed
KILL_S = 5.0  # for a killed process to be gone; one that the kernel holds on to is left behind
LAST_BYTES_S = 0.5  # for what a dead process has sent to be read


class RunningEngine(Protocol):
    """An engine as its supervisor has it: a process of its own, or a link to one that fronts share."""

    @property
    def pid(self) -> int:
        """0 where it is not ours."""
        ...

    @property
    def is_turn(self) -> bool: ...

    @property
    def num_restarts(self) -> int: ...

    def send(self, commands: ToEngine) -> None: ...

    def messages(self) -> AsyncIterator[FromEngine]: ...

    async def end(self, grace_s: float) -> str: ...

    def kill(self) -> None: ...


class EngineStarter(Protocol):
    async def start(
        self, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve
    ) -> RunningEngine: ...

    def cancel(self) -> None:
        """No engine is wanted any more."""
        ...


class ProcessStarter:
    async def start(self, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve) -> RunningEngine:
        return await EngineProcess.start(command, options, reserve)

    def cancel(self) -> None:
        """A start takes no time."""


class EngineProcess:
    """A process with one end of a socketpair as its standard input. A new process gets a new pair, so no message of a
    dead engine is ever taken for one of its successor."""

    is_turn = True  # it has one front, whose turn it always is
    num_restarts = 0  # that its supervisor does not know of

    def __init__(self, process: asyncio.subprocess.Process, link: EngineLink) -> None:
        self._process = process
        self._link = link
        self.send, self.messages = link.send, link.messages
        self._exit = asyncio.ensure_future(self._wait_exit())

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        options: dict[str, Any],
        reserve: DescriptorReserve,
        inherited: Sequence[int] = (),
    ) -> EngineProcess:
        """Returns at once; the engine is ready when it says so. Raises OSError when no process can be made. inherited:
        descriptors that it has under the same numbers"""
        with reserve.released():  # all descriptors are taken before another task of this event loop runs
            ours, theirs = socket.socketpair()
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=theirs.fileno(), env=engine_environment(), pass_fds=inherited
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
        link = await EngineLink.open(ours)
        link.write(json.dumps(options).encode())
        return cls(process, link)

    @property
    def pid(self) -> int:
        return self._process.pid

    def introduce(self, front: int, end: socket.socket) -> None:
        """Gives the engine its end of a channel to a front. An engine that takes nothing in any more does not get it:
        it is as good as dead, and its front sees the channel closed."""
        raw = socket.socket(fileno=os.dup(self._link.fileno()))
        with raw, end, contextlib.suppress(OSError):
            socket.send_fds(raw, [framed(encode(ToEngine(front=front)))], [end.fileno()])

    async def end(self, grace_s: float = EXIT_S) -> str:
        """Waits for the process's exit, kills it when it does not come. -> how it ended"""
        if not await self._exits_within(grace_s):
            self.kill()
            if not await self._exits_within(KILL_S):
                logger.error("the engine process %d cannot be killed; it is left behind", self.pid)
        self._exit.cancel()
        self._link.kill()
        return _ended(self._process.returncode)

    def kill(self) -> None:
        """Ends also what is stopped (SIGSTOP)."""
        with contextlib.suppress(ProcessLookupError):
            self._process.kill()

    async def _exits_within(self, seconds: float) -> bool:
        done, _ = await asyncio.wait({self._exit}, timeout=seconds)
        return bool(done)

    async def _wait_exit(self) -> None:
        """A dead process's end of the channel is closed by the kernel, unless a child of its own holds it open."""
        await self._process.wait()
        asyncio.get_running_loop().call_later(LAST_BYTES_S, self._link.kill)


def _ended(status: int | None) -> str:
    if status is None:
        return "the engine process cannot be killed"
    if status >= 0:
        return f"the engine process ended with status {status}"
    try:
        return f"the engine process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"the engine process was ended by signal {-status}"

"""One engine process, seen from the front: make it, send commands, receive messages, notice its death, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any, Protocol

from cadence.config.env import engine_environment
from cadence.core.contract.codec import encode
from cadence.core.contract.messages import FromEngine, ToEngine
from cadence.engine.supervise.descriptors import DescriptorReserve
from cadence.engine.supervise.engine_link import EngineLink
from cadence.process.child import AsyncChild, Launch
from cadence.process.framing import framed

EXIT_S = 1.0  # for a process whose end of the channel is closed, before it is killed
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

    def __init__(self, child: AsyncChild, link: EngineLink) -> None:
        self._child = child
        self._link = link
        self.send, self.messages, self.kill = link.send, link.messages, child.kill
        child.exit.add_done_callback(self._exited)

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
        launch = Launch(command, "the engine process", engine_environment(), inherited)
        with reserve.released():  # all descriptors are taken before another task of this event loop runs
            child, wire = await AsyncChild.start(launch)
        link = await EngineLink.open(wire)
        link.write(json.dumps(options).encode())
        return cls(child, link)

    @property
    def pid(self) -> int:
        return self._child.pid

    def introduce(self, front: int, end: socket.socket) -> None:
        """Gives the engine its end of a channel to a front. An engine that takes nothing in any more does not get it:
        it is as good as dead, and its front sees the channel closed."""
        raw = socket.socket(fileno=os.dup(self._link.fileno()))
        with raw, end, contextlib.suppress(OSError):
            socket.send_fds(raw, [framed(encode(ToEngine(front=front)))], [end.fileno()])

    async def end(self, grace_s: float = EXIT_S) -> str:
        """Waits for the process's exit, kills it when it does not come. -> how it ended"""
        how = await self._child.end(grace_s)
        self._link.kill()
        return how

    def _exited(self, status: asyncio.Future[int]) -> None:
        """A dead process's end of the channel is closed by the kernel, unless a child of its own holds it open."""
        status.get_loop().call_later(LAST_BYTES_S, self._link.kill)

"""One engine process, seen from the front: make it, send commands, receive messages, notice its death, end it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from typing import Any

import msgspec

from cadence.config.env import engine_environment
from cadence.core.codec import decode_from_engine, encode
from cadence.core.errors import EngineDeadError
from cadence.core.messages import FromEngine, ToEngine
from cadence.engine.channel import HEADER, READ_BYTES, framed
from cadence.engine.descriptors import DescriptorReserve

logger = logging.getLogger("cadence.engine")

EXIT_S = 1.0  # for a process whose end of the channel is closed, before it is killed
KILL_S = 5.0  # for a killed process to be gone; one that the kernel holds on to is left behind
LAST_BYTES_S = 0.5  # for what a dead process has sent to be read


class EngineProcess:
    """A process with one end of a socketpair as its standard input. A new process gets a new pair, so no message of a
    dead engine is ever taken for one of its successor."""

    def __init__(
        self, process: asyncio.subprocess.Process, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._process = process
        self._reader = reader
        self._writer = writer
        self._exit = asyncio.ensure_future(self._wait_exit())

    @classmethod
    async def start(cls, command: Sequence[str], options: dict[str, Any], reserve: DescriptorReserve) -> EngineProcess:
        """Returns at once; the engine is ready when it says so. Raises OSError when no process can be made."""
        with reserve.released():  # all descriptors are taken before another task of this event loop runs
            ours, theirs = socket.socketpair()
            try:
                process = await asyncio.create_subprocess_exec(
                    *command, stdin=theirs.fileno(), env=engine_environment()
                )
            except BaseException:
                ours.close()
                raise
            finally:
                theirs.close()
        reader, writer = await asyncio.open_unix_connection(sock=ours, limit=READ_BYTES)
        writer.write(framed(json.dumps(options).encode()))
        return cls(process, reader, writer)

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, commands: ToEngine) -> None:
        """Never blocks, and never fails: what a dead engine does not get, its successor does."""
        if not self._writer.is_closing():
            self._writer.write(framed(encode(commands)))

    async def messages(self) -> AsyncIterator[FromEngine]:
        """Everything the engine says, until its end of the channel is closed."""
        try:
            while True:
                (length,) = HEADER.unpack(await self._reader.readexactly(HEADER.size))
                yield decode_from_engine(await self._reader.readexactly(length))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except msgspec.MsgspecError as error:
            raise EngineDeadError(f"the engine sent what cannot be read: {error}") from error

    async def end(self, grace_s: float = EXIT_S) -> str:
        """Waits for the process's exit, kills it when it does not come. -> how it ended"""
        if not await self._exits_within(grace_s):
            self.kill()
            if not await self._exits_within(KILL_S):
                logger.error("the engine process %d cannot be killed; it is left behind", self.pid)
        self._exit.cancel()
        self._writer.transport.abort()
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
        asyncio.get_running_loop().call_later(LAST_BYTES_S, self._writer.transport.abort)


def _ended(status: int | None) -> str:
    if status is None:
        return "the engine process cannot be killed"
    if status >= 0:
        return f"the engine process ended with status {status}"
    try:
        return f"the engine process was ended by {signal.Signals(-status).name}"
    except ValueError:
        return f"the engine process was ended by signal {-status}"

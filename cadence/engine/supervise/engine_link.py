"""A front's end of the channel to an engine process: commands out, messages in."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import msgspec

from cadence.core.contract.codec import decode_from_engine, encode
from cadence.core.contract.messages import FromEngine, ToEngine
from cadence.core.errors import EngineDeadError
from cadence.process.framing import READ_BYTES, framed, read_frame


class EngineLink:
    """To an engine that this front does not own: it cannot kill it, and hears of its end by the end of the channel."""

    pid = 0

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_turn: bool, num_restarts: int
    ) -> None:
        """is_turn: whether this front, of all that share the engine, may retry quarantined requests at once"""
        self._reader = reader
        self._writer = writer
        self.is_turn = is_turn
        self.num_restarts = num_restarts  # before this one

    @classmethod
    async def open(cls, end: socket.socket, is_turn: bool = True, num_restarts: int = 0) -> EngineLink:
        reader, writer = await asyncio.open_unix_connection(sock=end, limit=READ_BYTES)
        return cls(reader, writer, is_turn, num_restarts)

    def fileno(self) -> int:
        return int(self._writer.get_extra_info("socket").fileno())

    def send(self, commands: ToEngine) -> None:
        """Never blocks, and never fails: what a dead engine does not get, its successor does."""
        self.write(encode(commands))

    def write(self, data: bytes) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(data))

    async def messages(self) -> AsyncIterator[FromEngine]:
        """Everything the engine says, until its end of the channel is closed."""
        try:
            while True:
                yield decode_from_engine(await read_frame(self._reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        except msgspec.MsgspecError as error:
            raise EngineDeadError(f"the engine sent what cannot be read: {error}") from error

    def kill(self) -> None:
        """Ends the channel alone."""
        self._writer.transport.abort()

    async def end(self, grace_s: float = 0.0) -> str:
        """-> how it ended"""
        self.kill()
        return "the engine ended the connection"

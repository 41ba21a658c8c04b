"""One engine process, seen from the front: start it, send orders, receive news, notice its death."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Any

import zmq
import zmq.asyncio

from cadence.core.codec import decode_from_engine, encode
from cadence.core.errors import EngineDeadError
from cadence.core.messages import FromEngine, ToEngine

GRACE_S = 3.0  # for an engine told to stop, before it is killed
LAST_WORDS_S = 0.1


class EngineProcess:
    """A socket in a private folder (mode 0700, random name) with one engine at its other end.

    A new process gets a new socket, so no message of a dead engine is ever taken for one of its successor.
    """

    def __init__(self, process: asyncio.subprocess.Process, socket: zmq.asyncio.Socket, folder: str) -> None:
        self._process = process
        self._socket = socket
        self._folder = folder

    @classmethod
    async def start(cls, options: dict[str, Any]) -> EngineProcess:
        """Returns at once; the engine is ready when `news` says so."""
        folder = tempfile.mkdtemp(prefix="cadence-")
        path = os.path.join(folder, secrets.token_hex(8))
        socket = zmq.asyncio.Context.instance().socket(zmq.PAIR)
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(f"ipc://{path}")
        os.chmod(path, 0o600)
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "cadence.engine.core_process", f"ipc://{path}", stdin=asyncio.subprocess.DEVNULL
        )
        await socket.send(json.dumps(options).encode())
        return cls(process, socket, folder)

    @property
    def pid(self) -> int:
        return self._process.pid

    async def send(self, orders: ToEngine) -> None:
        await self._socket.send(encode(orders))

    async def news(self) -> AsyncIterator[FromEngine]:
        """Everything the engine says, until it dies: then EngineDeadError."""
        death = asyncio.ensure_future(self._process.wait())
        parcel = asyncio.ensure_future(self._socket.recv())
        try:
            while True:
                await asyncio.wait({parcel, death}, return_when=asyncio.FIRST_COMPLETED)
                if not parcel.done():  # it is dead; what it said before may still be on its way
                    await asyncio.wait({parcel}, timeout=LAST_WORDS_S)
                if not parcel.done():
                    raise EngineDeadError(f"the engine process ended with code {death.result()}")
                news = decode_from_engine(parcel.result())
                parcel = asyncio.ensure_future(self._socket.recv())
                yield news
        finally:
            death.cancel()
            parcel.cancel()

    async def stop(self) -> None:
        """Asks it to leave, then makes it."""
        with contextlib.suppress(ProcessLookupError, zmq.ZMQError):
            await self.send(ToEngine(stop=True))
        try:
            await asyncio.wait_for(self._process.wait(), GRACE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
        self.close()

    def close(self) -> None:
        self._socket.close()
        shutil.rmtree(self._folder, ignore_errors=True)

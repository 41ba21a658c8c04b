"""One API process, seen from the server's process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from cadence.core.contract.codec import decode_from_front, encode
from cadence.core.contract.front_messages import NOTHING_COUNTED, FromFront, FrontCounts, ToFront
from cadence.process.async_channel import AsyncChannel
from cadence.process.channel import NO_DESCRIPTOR, Channel
from cadence.process.child import AsyncChild, Launch, module_command

LAST_BYTES_S = 2.0  # for what a dead process has sent to be read
API_COMMAND = module_command("cadence.entrypoints.server.api_process")


class Unfinished(NamedTuple):
    """An answer, as a process has handed it over."""

    connection: socket.socket
    answer: bytes


class ApiChild:
    def __init__(self, child: AsyncChild, wire: socket.socket) -> None:
        self._child = child
        self.signal = child.signal
        self._ended = asyncio.Event()  # all that it has sent was read
        self._channel = AsyncChannel(Channel(wire), self._take, self._ended.set)
        self.on_message: Callable[[FromFront], None] = lambda message: None
        self.has_served = False
        self.counts = NOTHING_COUNTED  # as it last said
        self.table_version = 0  # of the adapters that it serves
        self.hold_version = 0  # of the hold that it was told last, and has taken in
        self.quiet: set[int] = set()  # versions of holds that are waited for: what had to end there has ended
        self.heard_at = time.monotonic()  # seconds
        self.unfinished: list[Unfinished] = []  # that it could not finish itself

    @classmethod
    async def start(cls, options: bytes) -> ApiChild:
        """Signals of a terminal do not reach the process."""
        process, wire = await AsyncChild.start(Launch(API_COMMAND, "the API process", own_session=True))
        child = cls(process, wire)
        child.send(ToFront(options=options))
        return child

    def send(self, message: ToFront, descriptor: int = NO_DESCRIPTOR) -> None:
        self._channel.send(encode(message), descriptor)

    def serve(self, connection: socket.socket) -> None:
        self.send(ToFront(connection=True), connection.detach())

    def go_on(self, unfinished: Unfinished) -> None:
        self.send(ToFront(unfinished=unfinished.answer), unfinished.connection.detach())

    async def wait(self) -> int:
        """-> its exit status, once all that it has sent was read"""
        status = await self._child.exit
        with contextlib.suppress(TimeoutError):  # a child of its own may hold its end open
            await asyncio.wait_for(self._ended.wait(), LAST_BYTES_S)
        self._channel.close()
        return status

    def last_counts(self) -> FrontCounts:
        """Of one that is gone: nothing is in flight, and what was has ended with it."""
        server = dict(self.counts.server)
        if server:
            server["http_requests_aborted"] += server["http_requests_in_flight"]
        lasting = {name: value for name, value in server.items() if not name.endswith("_in_flight")}
        return replace(self.counts, server=lasting)

    def _take(self, data: bytes) -> None:
        message = decode_from_front(data)
        self.heard_at = time.monotonic()
        self.counts = message.counts or self.counts
        self.has_served |= message.serving
        self.table_version = max(self.table_version, message.table_version)
        self.hold_version = max(self.hold_version, message.hold_version)
        if message.quiet_version:
            self.quiet.add(message.quiet_version)
        if message.unfinished:
            self.unfinished.append(Unfinished(self._channel.take_socket(), message.unfinished))
        self.on_message(message)

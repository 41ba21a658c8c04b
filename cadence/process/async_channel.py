"""A `Channel` on an event loop: messages come by callback."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable

from cadence.process.channel import NO_DESCRIPTOR, Channel


class AsyncChannel:
    """Descriptors that came with messages lie in `descriptors`, in their order."""

    def __init__(self, channel: Channel, on_message: Callable[[bytes], None], on_end: Callable[[], None]) -> None:
        channel.takes_descriptors = True
        self._channel = channel
        self._on_message = on_message
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._descriptor = channel.fileno()
        self._is_open = True
        self._loop.add_reader(self._descriptor, self._read)

    def take_socket(self) -> socket.socket:
        """Of the oldest message that brought one and for which this was not called yet."""
        return socket.socket(fileno=self._channel.descriptors.popleft())

    def send(self, data: bytes, descriptor: int = NO_DESCRIPTOR) -> None:
        """Never blocks, and never fails: an end that is gone shows as `on_end`."""
        if not self._is_open:
            return
        with contextlib.suppress(OSError):
            self._channel.send(data, descriptor)
            if self._channel.is_congested:
                self._loop.add_writer(self._descriptor, self._flush)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._loop.remove_reader(self._descriptor)
            self._loop.remove_writer(self._descriptor)
            self._channel.close(0.0)

    def _flush(self) -> None:
        with contextlib.suppress(OSError):
            self._channel.flush()
            if self._channel.is_congested:
                return
        self._loop.remove_writer(self._descriptor)

    def _read(self) -> None:
        try:
            messages = self._channel.receive(0.0)
        except EOFError:
            self.close()
            return self._on_end()
        for message in messages:
            self._on_message(message)

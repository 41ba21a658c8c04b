"""WebSockets by wsproto, over connections that came as HTTP. Imported when the first one is opened."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from cadence.entrypoints.server.http.sockets.connections import Connections


class BoundedWebSocket(WSProtocol):
    """Is among the open connections until it is lost."""

    def __init__(self, connections: Connections, wire: asyncio.BaseTransport, **options: Any) -> None:
        super().__init__(**options)
        self._all_connections, self._wire = connections, wire

    def connection_lost(self, exc: Exception | None) -> None:
        self._all_connections.leave(self._wire)
        super().connection_lost(exc)

    def abort(self) -> None:
        """Ends the connection with what was not sent."""
        self.transport.abort()

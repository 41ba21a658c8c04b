"""TLS, begun by us rather than by the event loop: so a connection is counted before its handshake, and what its client
has not read is known down to the socket."""

from __future__ import annotations

import asyncio
import ssl
from typing import cast

from cadence.core.errors import ConfigError
from cadence.entrypoints.openai.connections import Connections, Room
from cadence.entrypoints.openai.http import LimitedHttp
from cadence.entrypoints.openai.options import ServeOptions

HANDSHAKE_S = 20.0


def tls_context(options: ServeOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(options.ssl_certfile or "", options.ssl_keyfile)
        context.verify_mode = ssl.VerifyMode(options.ssl_cert_reqs)
        if options.ssl_ca_certs:
            context.load_verify_locations(options.ssl_ca_certs)
        context.set_ciphers(options.ssl_ciphers or "TLSv1")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        where = f"ssl_certfile={options.ssl_certfile}, ssl_keyfile={options.ssl_keyfile}"
        raise ConfigError(f"TLS cannot be set up from {where}: {error}", "ssl_certfile") from None
    return context


class TlsDoor(asyncio.Protocol):
    """A connection until its handshake is done; then it is `http`'s."""

    def __init__(self, context: ssl.SSLContext, connections: Connections, http: LimitedHttp) -> None:
        self._context = context
        self._connections = connections
        self._http = http
        self._task: asyncio.Task[None] | None = None  # held, so that it is not collected

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        wire = cast(asyncio.Transport, transport)
        room = self._connections.enter(wire)
        if room is Room.NONE:
            self._connections.leave(wire)
            wire.abort()
            return
        self._task = asyncio.ensure_future(self._shake_hands(wire, room))

    async def _shake_hands(self, wire: asyncio.Transport, room: Room) -> None:
        loop = asyncio.get_running_loop()
        try:
            transport = await loop.start_tls(
                wire, self._http, self._context, server_side=True, ssl_handshake_timeout=HANDSHAKE_S
            )
        except OSError:  # not TLS, a certificate that is not trusted, too late, or gone
            transport = None
        if transport is None or wire.is_closing():
            self._connections.leave(wire)
            wire.abort()
            return
        self._http.begin(transport, wire, room)

"""TLS, next to the socket: so a connection is counted before its handshake, and what its client has not read is known
down to the last buffer."""

from __future__ import annotations

import asyncio
import ssl

from uvloop.loop import SSLProtocol

from cadence.config.server.serve_options import ServeOptions
from cadence.core.errors import ConfigError
from cadence.entrypoints.server.http.sockets.connection import BoundedHttpProtocol
from cadence.entrypoints.server.http.sockets.connections import Capacity, Connections

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


class TlsConnection(SSLProtocol):
    """Between the socket and `http`, which hears of the connection when the handshake is done."""

    def __init__(self, context: ssl.SSLContext, connections: Connections, http: BoundedHttpProtocol) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(loop, http, context, None, server_side=True, ssl_handshake_timeout=HANDSHAKE_S)
        self._connections = connections
        self._http = http
        self._wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:
        self._wire = transport
        room = self._connections.enter(transport)
        self._http.attach(transport, room)
        super().connection_made(transport)
        if room is Capacity.NONE:
            transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._connections.leave(self._wire)
        super().connection_lost(exc)

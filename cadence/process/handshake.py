"""Both ends of a connection prove that they know the secret of the launch, before anything else is read from them.

Each side draws a number; each shows a MAC, keyed by the secret, of its role, its purpose and both numbers. The secret
itself never travels, and what was overheard on the wire is of no use a second time. Messages are not encrypted.
"""

from __future__ import annotations

import hmac
import secrets
import socket

from cadence.core.errors import ConfigError
from cadence.process.message_socket import Address, MessageSocket
from cadence.process.messages import MOST_MESSAGE, ClosedError, MessageError

HANDSHAKE_S = 5.0  # for all of it
LEAST_SECRET = 16  # bytes
MOST_UNKNOWN = 256  # bytes of a message of who is unknown
_NONCE = 32
_GREETING = b"cadence 1 "


class RefusedError(MessageError):
    """The other side does not know the secret, or is none of ours."""


def new_secret() -> bytes:
    return secrets.token_bytes(32)


def read_secret(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            secret = file.read(4096).strip()
    except OSError as error:
        raise ConfigError(f"node_secret_file={path}: {error.strerror}", "node_secret_file") from None
    if len(secret) < LEAST_SECRET:
        message = f"node_secret_file={path} holds {len(secret)} bytes; a secret has at least {LEAST_SECRET}"
        raise ConfigError(message, "node_secret_file")
    return secret


def accept(end: socket.socket, secret: bytes, purpose: bytes) -> MessageSocket:
    """The side that listens. Raises RefusedError, TimeoutError, ClosedError."""
    connection = MessageSocket(end, MOST_UNKNOWN)
    try:
        own = _GREETING + secrets.token_bytes(_NONCE)
        connection.write(own, HANDSHAKE_S)
        answer = connection.read(HANDSHAKE_S)
        their_nonce, proof = answer[:_NONCE], answer[_NONCE:]
        if not hmac.compare_digest(proof, _proof(secret, b"dial", purpose, own, their_nonce)):
            connection.write(b"-", HANDSHAKE_S)
            raise RefusedError(f"{connection.peer_host} does not know the secret of this launch")
        connection.write(_proof(secret, b"listen", purpose, own, their_nonce), HANDSHAKE_S)
    except BaseException:
        connection.release()
        raise
    connection.frames.most = MOST_MESSAGE
    return connection


def dial(address: Address, secret: bytes, purpose: bytes) -> MessageSocket:
    """The side that connects. Raises OSError where nothing listens, and what `accept` raises."""
    connection = MessageSocket(socket.create_connection(address, HANDSHAKE_S), MOST_UNKNOWN)
    try:
        theirs = connection.read(HANDSHAKE_S)
        if not theirs.startswith(_GREETING) or len(theirs) != len(_GREETING) + _NONCE:
            raise RefusedError("what listens there is none of this version")
        nonce = secrets.token_bytes(_NONCE)
        connection.write(nonce + _proof(secret, b"dial", purpose, theirs, nonce), HANDSHAKE_S)
        answer = connection.read(HANDSHAKE_S)
        if not hmac.compare_digest(answer, _proof(secret, b"listen", purpose, theirs, nonce)):
            raise RefusedError("it has another secret")
    except ClosedError as error:
        connection.release()
        raise ConnectionResetError(str(error)) from error
    except BaseException:
        connection.release()
        raise
    connection.frames.most = MOST_MESSAGE
    return connection


def _proof(secret: bytes, role: bytes, purpose: bytes, greeting: bytes, nonce: bytes) -> bytes:
    parts = (role, purpose, greeting, nonce)
    return hmac.digest(secret, b"".join(len(part).to_bytes(4, "little") + part for part in parts), "sha256")

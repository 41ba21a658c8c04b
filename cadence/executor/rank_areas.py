"""What the ranks of a stage compute together in: memory on one machine, connections between several."""

from __future__ import annotations

import os
import socket
import time

from cadence.core.errors import EngineDeadError
from cadence.distributed.collectives import CollectiveArea, NetworkArea
from cadence.distributed.handshake import HANDSHAKE_S, accept, dial
from cadence.distributed.message_socket import Address
from cadence.distributed.messages import ClosedError, MessageError
from cadence.executor.joining import PEER, Ticket, Welcome
from cadence.kernels.cpu.collectives import SharedArea

MEET_S = 30.0  # for all ranks of a stage to be connected


def open_areas(ticket: Ticket, welcome: Welcome, listener: socket.socket) -> list[SharedArea]:
    """-> one, or none where a rank has nothing to compute with others. The listener is closed."""
    try:
        if welcome.peers:
            return [NetworkArea(connect_peers(ticket, welcome.peers, listener))]
    finally:
        listener.close()
    pid, fd = welcome.area
    return [CollectiveArea.attach(_opened(pid, fd))] if fd >= 0 else []


def _opened(pid: int, fd: int) -> int:
    """A descriptor of another process of this user, here."""
    try:
        return os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise EngineDeadError(f"the memory of process {pid} cannot be shared: {error.strerror}") from error


def connect_peers(ticket: Ticket, peers: tuple[Address, ...], listener: socket.socket) -> list[int]:
    """Each rank connects to those before it. -> descriptors by tp_rank, its own -1"""
    own, ends = ticket.mesh.tp_rank, time.monotonic() + MEET_S
    found = [-1] * len(peers)
    for rank in range(own):
        found[rank] = _dialled(peers[rank], ticket, own)
    listener.settimeout(HANDSHAKE_S)
    while -1 in found[own + 1 :]:
        if time.monotonic() > ends:
            raise EngineDeadError(f"rank {ticket.mesh.rank} was not found by its peers within {MEET_S:g} s")
        try:
            connection = accept(listener.accept()[0], ticket.secret, PEER)
            rank = int.from_bytes(connection.read(HANDSHAKE_S), "little")
            if own < rank < len(peers) and found[rank] < 0:
                found[rank] = connection.detach()
        except (OSError, ClosedError, MessageError):
            continue
    return found


def _dialled(address: Address, ticket: Ticket, own: int) -> int:
    try:
        connection = dial(address, ticket.secret, PEER)
        connection.write(own.to_bytes(4, "little"), HANDSHAKE_S)
    except (OSError, ClosedError, MessageError) as error:
        host, port = address
        raise EngineDeadError(f"rank {ticket.mesh.rank} cannot reach its peer at {host}:{port}: {error}") from error
    return connection.detach()

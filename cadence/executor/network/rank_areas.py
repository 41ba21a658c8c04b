"""What a rank computes with others in: memory on one machine, connections between several."""

from __future__ import annotations

import os
import socket
import struct
import time

from cadence.core.errors import EngineDeadError
from cadence.distributed.collectives import CollectiveArea, NetworkArea
from cadence.distributed.links import LinkArea, NetworkLinkArea
from cadence.distributed.mesh import Mesh
from cadence.distributed.shared_areas import RankAreas
from cadence.executor.local.joining import PEER, Ticket, Welcome
from cadence.kernels.cpu.collectives import SharedArea
from cadence.process.handshake import HANDSHAKE_S, accept, dial
from cadence.process.message_socket import Address
from cadence.process.messages import ClosedError, MessageError

MEET_S = 60.0  # for all ranks to be connected
RETRY_S = 0.1
SUM, STREAM, TOLD = range(3)  # what a connection is for: computing together, or one of the two kinds of links
_LABEL = struct.Struct("<II")  # what for, and the rank that connects

Use = tuple[int, int]  # what for, and with which rank


def open_areas(ticket: Ticket, welcome: Welcome, listener: socket.socket) -> RankAreas:
    """The listener is closed."""
    with listener:
        found = connect_ranks(ticket, welcome.ranks, uses_of(ticket.mesh, welcome), listener)
    mesh = ticket.mesh
    together: list[SharedArea]
    if welcome.is_stage_apart:
        first = mesh.pp_rank * mesh.tensor_parallel
        together = [NetworkArea([found.get((SUM, first + place), -1) for place in range(mesh.tensor_parallel)])]
    else:
        together = [CollectiveArea.attach(fd) for fd in _opened(*welcome.together)]
    if not welcome.ranks:
        return RankAreas(together, [LinkArea.attach(fd) for fd in _opened(*welcome.links)])
    return RankAreas(together, [NetworkLinkArea(found.get(use, -1)) for use in links_of(mesh)])


def links_of(mesh: Mesh) -> list[Use]:
    """Of its place, as `create_links` orders them: by whom this rank has at the other end, if it has an end."""
    own, last, size = mesh.pp_rank, mesh.pipeline_parallel - 1, mesh.tensor_parallel
    no_rank = mesh.world_size
    streams = [{stage: stage + 1, stage + 1: stage}.get(own) for stage in range(last)]
    told = [{stage: last, last: stage}.get(own) for stage in range(last)]
    return [
        (kind, no_rank if stage is None else stage * size + mesh.tp_rank)
        for kind, stages in ((STREAM, streams), (TOLD, told))
        for stage in stages
    ]


def uses_of(mesh: Mesh, welcome: Welcome) -> set[Use]:
    """The connections that a rank needs."""
    if not welcome.ranks:
        return set()
    first = mesh.pp_rank * mesh.tensor_parallel
    stage = range(first, first + mesh.tensor_parallel) if welcome.is_stage_apart else ()
    together = {(SUM, rank) for rank in stage if rank != mesh.rank}
    return together | {use for use in links_of(mesh) if use[1] < mesh.world_size}


def connect_ranks(
    ticket: Ticket, ranks: tuple[Address, ...], wanted: set[Use], listener: socket.socket
) -> dict[Use, int]:
    """Each rank connects to those before it. -> descriptors"""
    own, ends = ticket.mesh.rank, time.monotonic() + MEET_S
    found = {use: _dialled(ranks[use[1]], ticket, use, ends) for use in sorted(wanted) if use[1] < own}
    listener.settimeout(HANDSHAKE_S)
    while missing := wanted - found.keys():
        if time.monotonic() > ends:
            others = sorted({rank for _, rank in missing})
            raise EngineDeadError(f"ranks {others} did not connect to rank {own} within {MEET_S:g} s")
        try:
            connection = accept(listener.accept()[0], ticket.secret, PEER)
            use = _LABEL.unpack(connection.read(HANDSHAKE_S))
            if use in missing:
                found[use] = connection.detach()
        except (OSError, ClosedError, MessageError, struct.error):
            continue
    return found


def _dialled(address: Address, ticket: Ticket, use: Use, ends: float) -> int:
    while True:
        try:
            connection = dial(address, ticket.secret, PEER)
            connection.write(_LABEL.pack(use[0], ticket.mesh.rank), HANDSHAKE_S)
            return connection.detach()
        except (OSError, ClosedError, MessageError) as error:
            if time.monotonic() > ends:
                host, port = address
                message = f"rank {ticket.mesh.rank} cannot reach rank {use[1]} at {host}:{port}: {error}"
                raise EngineDeadError(message) from error
        time.sleep(RETRY_S)


def _opened(pid: int, fds: tuple[int, ...]) -> list[int]:
    """Descriptors of another process of this user, here."""
    try:
        return [os.open(f"/proc/{pid}/fd/{fd}", os.O_RDWR | os.O_CLOEXEC) for fd in fds]
    except OSError as error:
        raise EngineDeadError(f"the memory of process {pid} cannot be shared: {error.strerror}") from error

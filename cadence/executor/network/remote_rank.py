"""One rank that reaches its engine over the network: it joins, and carries out messages. A `worker_process` runs it,
or a Ray actor."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import queue
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from cadence.distributed.mesh import Mesh
from cadence.executor.local.joining import (
    JOIN_S,
    RANK,
    Hello,
    Offers,
    Ticket,
    Welcome,
    decode_welcome,
    encode_busy,
    encode_joining,
    host_key,
)
from cadence.executor.worker.rank_loop import BEAT_S, SILENCE_S, Fail, RankLink, carry_out, settle
from cadence.process.ended import PARENT_GONE
from cadence.process.handshake import RefusedError, dial
from cadence.process.message_socket import MessageSocket, listen
from cadence.process.messages import ClosedError, MessageError
from cadence.process.parent import start_heartbeat

if TYPE_CHECKING:
    from cadence.distributed.collectives import CollectiveArea
    from cadence.distributed.links import LinkArea
    from cadence.executor.worker.carrier import Carrier

REFUSED = 5  # exit status
RETRY_S = 0.5  # between attempts to find the engine
LINGER_S = 1.0  # of a rank whose peer is gone: the engine should know of that one first

logger = logging.getLogger("cadence.executor")


class Inbox:
    """The messages of a connection, read by a thread: when it ends, so does this process, whatever it is doing; after
    the last message it may."""

    def __init__(
        self,
        connection: MessageSocket,
        last: bytes,
        silence_s: float = SILENCE_S,
        leave: Callable[[int], None] = os._exit,
    ) -> None:
        """silence_s: without a message or a heartbeat, after which the engine counts as gone"""
        self._last = last
        self._silence_s = silence_s
        self._leave = leave
        self._messages: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._connection = connection
        threading.Thread(target=self._receive, name="engine", daemon=True).start()

    def read(self, timeout_s: float = math.inf) -> bytes:
        try:
            return self._messages.get(timeout=None if timeout_s == math.inf else timeout_s)
        except queue.Empty:
            raise TimeoutError("nothing came from the engine") from None

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._connection.fd, select.POLLIN)
        try:
            while poll.poll(self._silence_s * 1000):
                for message in self._connection.arrived():
                    self._messages.put(message)
                    if message == self._last:
                        return
        except (ClosedError, MessageError):
            """Gone as well."""
        self._leave(PARENT_GONE)


class BusyWriter:
    """Results over a connection; heartbeats tell how long this rank has computed, where that has changed."""

    def __init__(self, connection: MessageSocket) -> None:
        self.connection = connection
        self._busy_s = self._told_s = 0.0

    def write(self, message: bytes, timeout_s: float = math.inf) -> None:
        self.connection.write(message, timeout_s)

    def add_busy(self, seconds: float) -> None:
        self._busy_s += seconds

    def beat(self) -> None:
        busy_s = self._busy_s
        if busy_s == self._told_s:
            return self.connection.beat()
        with contextlib.suppress(ClosedError):
            self.connection.write(encode_busy(busy_s))
        self._told_s = busy_s


def run_rank(ticket: Ticket, join_s: float = JOIN_S) -> int:
    """-> exit status"""
    try:
        connection = _find_engine(ticket, join_s)
        results = BusyWriter(connection)
        start_heartbeat(results.beat, BEAT_S)
        listener = listen((connection.own_host, 0))
        made, offers = _offers(ticket.mesh)
        welcome = _introduce(ticket, connection, offers, listener)
    except (RefusedError, TimeoutError) as error:
        logger.error("rank %d cannot join: %s", ticket.mesh.rank, error)
        return REFUSED
    except ClosedError:
        return PARENT_GONE
    status = _carry_out(ticket, welcome, results, listener)
    for area in made:  # that others may have opened until now
        area.release()
    return status


def _find_engine(ticket: Ticket, join_s: float) -> MessageSocket:
    host, port = ticket.address
    ends = time.monotonic() + join_s
    while True:
        try:
            return dial(ticket.address, ticket.secret, RANK)
        except RefusedError as error:
            raise RefusedError(f"{host}:{port}: {error} (node_secret_file)") from None
        except MessageError:
            raise RefusedError(f"what listens at {host}:{port} is no engine") from None
        except OSError as error:
            if time.monotonic() > ends:
                raise TimeoutError(f"no engine at {host}:{port} within {join_s:g} s: {error}") from None
        time.sleep(RETRY_S)


def _offers(mesh: Mesh) -> tuple[list[CollectiveArea | LinkArea], Offers]:
    """Memory that this rank makes for those that may be on its machine."""
    if mesh.world_size == 1 or mesh.tp_rank:
        return [], Offers()
    from cadence.distributed.collectives import CollectiveArea
    from cadence.distributed.links import create_links

    together = [CollectiveArea.create(mesh.tensor_parallel)] if mesh.tensor_parallel > 1 else []
    places = range(mesh.tensor_parallel if mesh.rank == 0 and mesh.pipeline_parallel > 1 else 0)
    links = [area for _ in places for area in create_links(mesh.pipeline_parallel)]
    offers = Offers(tuple(area.fd for area in together), tuple(area.fd for area in links))
    return [*together, *links], offers


def _introduce(ticket: Ticket, connection: MessageSocket, offers: Offers, listener: socket.socket) -> Welcome:
    """-> the engine's answer, when all ranks are there"""
    hello = Hello(
        mesh=ticket.mesh,
        num_nodes=ticket.num_nodes,
        host=host_key(ticket.node),
        host_name=socket.gethostname(),
        pid=os.getpid(),
        digest=ticket.digest,
        offers=offers,
        reachable_at=(connection.own_host, listener.getsockname()[1]),
        num_engines=ticket.num_engines,
    )
    connection.write(encode_joining(hello), 5.0)
    welcome = decode_welcome(connection.read(2 * JOIN_S))
    if welcome.refusal:
        raise RefusedError(welcome.refusal)
    return welcome


def _carry_out(ticket: Ticket, welcome: Welcome, results: BusyWriter, listener: socket.socket) -> int:
    from cadence.executor.worker.wire import STOP

    link = RankLink(ticket.mesh.rank, Inbox(results.connection, STOP), results, LINGER_S)
    return carry_out(link, lambda fail: _open_carrier(ticket, welcome, link, listener, fail))


def _open_carrier(ticket: Ticket, welcome: Welcome, link: RankLink, listener: socket.socket, fail: Fail) -> Carrier:
    from cadence.device.cpus import cpu_shares
    from cadence.device.probe import visible_gpus
    from cadence.executor.network.rank_areas import open_areas
    from cadence.executor.worker.carrier import Carrier
    from cadence.executor.worker.wire import Seat, decode_config

    num_threads, cpus = cpu_shares(welcome.num_on_host, welcome.num_threads)[welcome.place]
    seat = Seat(ticket.mesh, num_threads=num_threads, cpus=cpus)
    settle(seat)
    config = decode_config(link.commands.read(JOIN_S))
    if config.device.kind == "cuda":
        ids = config.device.ids or tuple(range(visible_gpus()))  # Ray shows each rank the one that it has
        gpu = ids[welcome.place % len(ids)]
        seat = replace(seat, gpu=gpu, num_sharers=ids.count(gpu))
    if ticket.model:
        from cadence.config.reference import find_model

        own = replace(config.model, files=find_model(ticket.model))
        config = replace(config, model=own)
    return Carrier.open(seat, config, link, open_areas(ticket, welcome, listener), fail)

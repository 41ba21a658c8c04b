"""One rank: a `Worker` in a process of its own, which carries out an executor's messages in their order.

    python -m cadence.executor.worker_process [COMMANDS RESULTS [SHARED ...]]

The first message of its wire is a `Seat` where it shares memory with its engine. The arguments are inherited
descriptors then: the ring of messages to all ranks, of which the first is the configuration, the ring of this rank's
results and answers, and, where ranks share layers, the memory in which they compute together. Without arguments it is
a `Ticket`: the rank reaches its engine over the network. It leaves when told to, when the parent, the engine or a rank
that it computes with is gone, or when a step fails.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from cadence.config import env
from cadence.distributed.ring import Ring
from cadence.executor.worker.rank_link import Fail, RankLink
from cadence.executor.worker.rank_loop import BEAT_S, carry_out, settle
from cadence.process.ended import PARENT_GONE
from cadence.process.framing import receive
from cadence.process.parent import open_wire, start_heartbeat, watch_parent

if TYPE_CHECKING:
    from cadence.executor.worker.carrier import Carrier
    from cadence.executor.worker.wire import Seat

CONFIG_S = 60.0  # for the configuration to arrive; it is written before this process exists


def run_local(first: bytes, commands: int, results: int, shared: list[int]) -> int:
    """A rank that shares memory with its engine. -> exit status"""
    reads, writes = Ring.attach(commands), Ring.attach(results)
    start_heartbeat(writes.beat, BEAT_S)
    from cadence.executor.worker.wire import decode_seat

    seat = decode_seat(first)
    settle(seat)
    link = RankLink(seat.mesh.rank, reads.reader(seat.mesh.rank), writes.writer())
    return carry_out(link, lambda fail: _open_carrier(seat, link, shared, fail))


def _open_carrier(seat: Seat, link: RankLink, shared: list[int], fail: Fail) -> Carrier:
    from cadence.distributed.shared_areas import attach_areas
    from cadence.executor.worker.carrier import Carrier
    from cadence.executor.worker.wire import decode_config

    config = decode_config(link.commands.read(CONFIG_S))
    return Carrier.open(seat, config, link, attach_areas(shared, seat.mesh), fail)


def run_remote(first: bytes) -> int:
    """-> exit status"""
    from cadence.executor.local.joining import decode_ticket
    from cadence.executor.network.remote_rank import run_rank

    return run_rank(decode_ticket(first))


def main(arguments: list[str]) -> int:
    wire = open_wire()
    watch_parent(wire)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the parent decides
    logging.basicConfig(level=env.log_level(), format="%(levelname)s: %(message)s")
    if not (first := receive(wire)):
        return PARENT_GONE
    if not arguments:
        return run_remote(first)
    commands, results, *shared = map(int, arguments)
    return run_local(first, commands, results, shared)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # its threads hold memory that would go one by one

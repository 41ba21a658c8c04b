"""One rank: a `Worker` in a process of its own, which carries out an executor's messages in their order.

    python -m cadence.executor.worker_process LIFE COMMANDS RESULTS [SHARED]

The arguments are inherited descriptors: a pipe that brings the rank's `Seat` and ends when the parent does, the ring of
messages to all ranks, of which the first is the configuration, the ring of this rank's results and answers, and, where
ranks share layers, the memory in which they compute together. It leaves when told to, when the parent or a rank that it
computes with is gone, or when a step fails.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from cadence.config import env
from cadence.core.errors import CadenceError
from cadence.distributed.ring import Ring, RingClosedError

if TYPE_CHECKING:
    from cadence.executor.carrier import Carrier
    from cadence.executor.wire import Seat

BEAT_S = 0.1
SILENCE_S = 60.0  # without a heartbeat, of a process that is not stopped
MOST_SEAT = 1 << 16  # bytes: what a pipe takes at once
PARENT_GONE, RANK_GONE = 3, 4  # exit statuses
CONFIG_S = 60.0  # for the configuration to arrive; it is written before this process exists
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """The system kills this process when the thread that made it ends, also where this one is stopped. A parent that is
    gone by now shows as the end of the pipe."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def watch_parent(life: int) -> None:
    """Exits at the end of the pipe, whatever this process is doing."""

    def watch() -> None:
        while os.read(life, 1):
            """Nothing is sent any more."""
        os._exit(PARENT_GONE)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def start_beats(results: Ring) -> None:
    """Also while weights load and while a step runs."""

    def beat() -> None:
        while True:
            results.beat()
            time.sleep(BEAT_S)

    threading.Thread(target=beat, name="heartbeat", daemon=True).start()


def settle(seat: Seat) -> None:
    """Before any thread of the kernels starts."""
    if seat.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, seat.cpus)


def open_carrier(seat: Seat, commands: Ring, results: Ring, shared: list[int]) -> Carrier:
    """Imports torch and loads the model, which may take long: heartbeats are sent by now."""
    from cadence.distributed.shared_areas import attach_areas
    from cadence.executor.carrier import Carrier
    from cadence.executor.wire import decode_config

    reader = commands.reader(seat.mesh.rank)
    config = decode_config(reader.read(CONFIG_S))
    fail = partial(_fail, seat.mesh.rank, results)
    return Carrier.open(seat, config, (reader, results.writer()), attach_areas(shared, seat.mesh), fail)


def _fail(rank: int, results: Ring, error: Exception) -> None:
    """By a thread beside the one that carries messages out, and may wait for one."""
    os._exit(status_of(error, rank, results))


def main(arguments: list[str]) -> int:
    end_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C in a terminal reaches the whole group; the front decides
    logging.basicConfig(level=env.log_level(), format="%(levelname)s: %(message)s")
    life, commands, results, *shared = map(int, arguments)
    first = os.read(life, MOST_SEAT)
    watch_parent(life)
    rings = Ring.attach(commands), Ring.attach(results)
    start_beats(rings[1])
    from cadence.executor.wire import decode_seat

    seat = decode_seat(first)
    settle(seat)
    try:
        open_carrier(seat, *rings, shared).run()
    except Exception as error:
        return status_of(error, seat.mesh.rank, rings[1])
    return 0


def status_of(error: Exception, rank: int, results: Ring) -> int:
    """Says what this process ends of -> its exit status"""
    from cadence.executor.wire import FAILURE, encode_error
    from cadence.kernels.interface.collectives import CollectiveAbortedError

    if isinstance(error, RingClosedError):
        return PARENT_GONE
    if isinstance(error, CollectiveAbortedError):
        return RANK_GONE
    results.writer().write(FAILURE + encode_error(error), 1.0)
    if not isinstance(error, CadenceError):  # those are told to the user
        logging.getLogger("cadence.executor").error("rank %d failed", rank, exc_info=error)
    return 1


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # its threads hold memory that would go one by one

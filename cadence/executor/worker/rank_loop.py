"""The life of a rank, however it reaches its engine: messages are carried out in their order until it is told to stop.
It says what it ends of."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cadence.core.errors import CadenceError
from cadence.executor.worker.rank_link import Fail, RankLink
from cadence.process.ended import PARENT_GONE
from cadence.process.messages import ClosedError

if TYPE_CHECKING:
    from cadence.executor.worker.carrier import Carrier
    from cadence.executor.worker.wire import Seat

BEAT_S = 0.1
SILENCE_S = 60.0  # without a heartbeat, of a process that is not stopped
FAILED, RANK_GONE = 1, 4  # exit statuses, beside PARENT_GONE

logger = logging.getLogger("cadence.executor")


def carry_out(link: RankLink, open_carrier: Callable[[Fail], Carrier]) -> int:
    """`open_carrier` imports torch and loads the model, which may take long: heartbeats are sent by now. It is given
    what to do where a thread beside this one fails. -> exit status"""
    try:
        open_carrier(partial(_fail, link)).run()
    except Exception as error:
        return _status_of(error, link)
    return 0


def settle(seat: Seat) -> None:
    """Before any thread of the kernels starts."""
    if seat.cpus and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, seat.cpus)


def _fail(link: RankLink, error: Exception) -> None:
    """By a thread beside the one that carries messages out, and may wait for one."""
    os._exit(_status_of(error, link))


def _status_of(error: Exception, link: RankLink) -> int:
    """Says what this process ends of -> its exit status"""
    from cadence.executor.worker.wire import FAILURE, encode_error
    from cadence.kernels.interface.collectives import CollectiveAbortedError

    if isinstance(error, ClosedError):
        return PARENT_GONE
    if isinstance(error, CollectiveAbortedError):
        time.sleep(link.linger_s)
        return RANK_GONE
    link.results.write(FAILURE + encode_error(error), 1.0)
    if not isinstance(error, CadenceError):  # those are told to the user
        logger.error("rank %d failed", link.rank, exc_info=error)
    return FAILED

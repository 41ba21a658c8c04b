"""A node without an engine: it starts its share of the ranks, which join the engine of the first node, and starts them
again when that engine was restarted or one of them has died."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from cadence.config.parallel import ParallelConfig
from cadence.executor.nodes import ranks_of, ticket_of
from cadence.executor.rank_processes import RankProcesses
from cadence.executor.remote_rank import FAILED, REFUSED

TICK_S = 0.1
PAUSE_S = 1.0  # before ranks join again
MOST_FAILURES = 5  # in a row, each within `SHORT_S`
SHORT_S = 30.0

logger = logging.getLogger("cadence.executor")


def run_node(parallel: ParallelConfig, model: str, digest: str, wanted: Callable[[], bool]) -> int:
    """Until the engine is stopped, or `wanted` says that this node is. -> exit status"""
    node, failures = parallel.nodes.rank, 0
    ticket = ticket_of(parallel, node, model, digest)
    while wanted():
        started, ranks = time.monotonic(), RankProcesses(ranks_of(parallel, node))
        try:
            ranks.start(ticket)
            why = _await_end(ranks, wanted)
            statuses = ranks.statuses()
        finally:
            ranks.end()
        if not why or REFUSED in statuses:
            return FAILED if why else 0
        failures = failures + 1 if time.monotonic() - started < SHORT_S else 0
        if failures >= MOST_FAILURES:
            logger.error("%s; that was the %dth time in a row, and this node gives up", why, failures)
            return FAILED
        logger.warning("%s; its node joins again", why)
        time.sleep(PAUSE_S)
    return 0


def _await_end(ranks: RankProcesses, wanted: Callable[[], bool]) -> str:
    """-> how a rank has died; "" = all were told to stop, or this node was"""
    while wanted() and any(status != 0 for status in ranks.statuses()):
        if why := ranks.death():
            return why
        time.sleep(TICK_S)
    return ""

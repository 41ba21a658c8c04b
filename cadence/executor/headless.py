"""A node without an engine: it starts its share of the ranks, which join the engines of the first node. Those of an
engine are started again when it was restarted or one of them has died."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import replace

from cadence.config.parallel import ParallelConfig
from cadence.device.cpus import cpu_shares
from cadence.executor.local.rank_processes import RankProcesses
from cadence.executor.network.nodes import ticket_of
from cadence.executor.network.remote_rank import REFUSED
from cadence.executor.worker.rank_loop import FAILED

TICK_S = 0.1
PAUSE_S = 1.0  # before ranks join again
MOST_FAILURES = 5  # in a row, each within `SHORT_S`
SHORT_S = 30.0

logger = logging.getLogger("cadence.executor")


def run_node(parallel: ParallelConfig, model: str, digest: str, wanted: Callable[[], bool]) -> int:
    """The ranks of each engine that has some here, until all engines are stopped. -> exit status"""
    engines = [replace(parallel, engine=number) for number in range(parallel.data_parallel_size)]
    engines = [engine for engine in engines if engine.ranks_on(parallel.nodes.rank)]
    if len(engines) == 1:
        return run_ranks(engines[0], model, digest, wanted)
    statuses: list[int] = []

    def run(engine: ParallelConfig, cpus: tuple[int, ...]) -> None:
        """In a thread: processes run where the one that starts them does. Where one fails, all end."""
        if cpus:
            os.sched_setaffinity(0, cpus)
        statuses.append(run_ranks(engine, model, digest, lambda: wanted() and not any(statuses)))

    shares = [cpus for _, cpus in cpu_shares(len(engines))]
    threads = [threading.Thread(target=run, args=each) for each in zip(engines, shares, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return max(statuses, default=FAILED)


def run_ranks(parallel: ParallelConfig, model: str, digest: str, wanted: Callable[[], bool]) -> int:
    """Those of one engine, until it is stopped, or `wanted` says that this node is. -> exit status"""
    node, failures = parallel.nodes.rank, 0
    ticket = ticket_of(parallel, node, model, digest)
    while wanted():
        started, ranks = time.monotonic(), RankProcesses(parallel.ranks_on(node))
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

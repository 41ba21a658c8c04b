"""Ranks on several machines that the user starts himself: engines are on the first, each has its share of ranks."""

from __future__ import annotations

import logging

from cadence.config.engine_config import EngineConfig
from cadence.config.parallel import ParallelConfig
from cadence.core.errors import ConfigError
from cadence.device.base import DeviceCaps
from cadence.distributed.mesh import Mesh
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.local.joining import JOIN_S, Ticket
from cadence.executor.local.processes import check_processors, open_group
from cadence.executor.local.rank_processes import RankProcesses
from cadence.executor.network.model_digest import model_digest
from cadence.executor.network.network_ranks import NetworkRanks
from cadence.process.handshake import read_secret

logger = logging.getLogger("cadence.executor")


def ticket_of(parallel: ParallelConfig, node: int, model: str, digest: str) -> Ticket:
    nodes = parallel.nodes
    mesh = Mesh(0, parallel.tensor_parallel_size, parallel.pipeline_parallel_size)
    secret = read_secret(nodes.secret_file)
    address = (nodes.address, nodes.port + parallel.engine)
    return Ticket(address, secret, mesh, node, nodes.count, model, digest, parallel.data_parallel_size)


def open_nodes(config: EngineConfig, caps: DeviceCaps, processors: Processors, join_s: float = 0.0) -> OpenExecutor:
    """On the first node. Waits for the others: `join_s` seconds, 0 = as long as they do."""
    check_processors(processors)
    parallel = config.parallel
    if parallel.nodes.rank:
        message = f"node_rank={parallel.nodes.rank}: only the first node has an engine; start this one with --headless"
        raise ConfigError(message, "node_rank")
    files = config.model.files
    ticket = ticket_of(parallel, 0, files.path, model_digest(files))
    others = parallel.nodes.count - 1
    logger.warning("waiting for %d more nodes at %s:%d", others, *ticket.address)
    ranks = NetworkRanks(RankProcesses(parallel.ranks_on(0)), ticket, config.device.cpu_threads, join_s or JOIN_S)
    return open_group(ranks, ticket.mesh, config, caps)

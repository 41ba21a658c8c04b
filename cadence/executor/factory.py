"""Which executor an engine gets."""

from __future__ import annotations

from collections.abc import Callable

from cadence.config.engine_config import EngineConfig
from cadence.core.errors import ConfigError
from cadence.device.base import Device, DeviceCaps
from cadence.device.probe import open_device, probe_caps
from cadence.executor.interface.opened import OpenExecutor, Processors
from cadence.executor.worker.engine_share import NO_SHARE, EngineShare, NoShare, open_share
from cadence.executor.worker.rounds import NO_ROUNDS, AnyRounds
from cadence.executor.worker.worker import Worker
from cadence.executor.worker.worker_config import WorkerConfig
from cadence.speculate.choose import ProposerFactory, proposer_of

Resolve = Callable[[DeviceCaps], EngineConfig]
ExecutorFactory = Callable[[str, Resolve, Processors], OpenExecutor]  # (the kind of device asked for, ...)


def device_caps(kind: str) -> DeviceCaps:
    """For those who open no executor: what the device can."""
    return probe_caps(kind)


def open_executor(
    kind: str, resolve: Resolve, logits_processors: Processors, rounds: AnyRounds = NO_ROUNDS, join_s: float = 0.0
) -> OpenExecutor:
    """One device in this process, or workers in processes of their own. rounds: of engines that share experts. join_s:
    for ranks of other machines to join; 0 = as long as usual"""
    caps = probe_caps(kind)
    config = resolve(caps)
    if config.parallel.has_workers:
        return _open_workers(config, caps, logits_processors, join_s)
    index = config.device.ids[0] if config.device.ids else 0
    device = open_device(config.device.kind, config.device.cpu_threads, index)
    return open_on(device, config, logits_processors, share=open_share(rounds, device))


def open_on(
    device: Device,
    config: EngineConfig,
    logits_processors: Processors = (),
    new_proposer: ProposerFactory = proposer_of,
    share: EngineShare | NoShare = NO_SHARE,
) -> OpenExecutor:
    worker = Worker(device, WorkerConfig.of(config), logits_processors, new_proposer, share=share)
    return OpenExecutor(worker, config, device.caps, device.queues_work, worker.layout, worker.vocab_size)


def _open_workers(config: EngineConfig, caps: DeviceCaps, logits_processors: Processors, join_s: float) -> OpenExecutor:
    try:
        return _workers(config, caps, logits_processors, join_s)
    except ModuleNotFoundError as error:  # messages between processes are written by a package of the server's
        name = "distributed_executor_backend"
        raise ConfigError(f"{name}={config.parallel.backend} needs the package {error.name}", name) from error


def _workers(config: EngineConfig, caps: DeviceCaps, logits_processors: Processors, join_s: float) -> OpenExecutor:
    if config.parallel.backend == "ray":
        from cadence.executor.network.ray_ranks import open_ray

        return open_ray(config, caps, logits_processors)
    if config.parallel.nodes.count > 1:
        from cadence.executor.network.nodes import open_nodes

        return open_nodes(config, caps, logits_processors, join_s)
    from cadence.executor.local.processes import open_processes

    return open_processes(config, caps, logits_processors)

"""Which executor an engine gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.core.kv_spec import KVLayout
from cadence.device.base import Device, DeviceCaps
from cadence.device.probe import open_device, probe_caps
from cadence.executor.base import Executor
from cadence.executor.worker import Worker, WorkerConfig
from cadence.speculate.choose import ProposerFactory, proposer_of


@dataclass(frozen=True, slots=True)
class OpenExecutor:
    """An executor with its model loaded, and what the engine must know of both."""

    executor: Executor
    config: EngineConfig  # resolved for the device
    caps: DeviceCaps
    queues_work: bool  # forwards run while the host goes on; where not, `advance` returns when they have run
    layout: KVLayout
    vocab_size: int


Resolve = Callable[[DeviceCaps], EngineConfig]
Processors = Sequence[Callable[..., Any]]  # on the logits of every request
ExecutorFactory = Callable[[str, Resolve, Processors], OpenExecutor]  # (the kind of device asked for, ...)


def device_caps(kind: str) -> DeviceCaps:
    """For those who open no executor: what the device can."""
    return probe_caps(kind)


def open_executor(kind: str, resolve: Resolve, logits_processors: Processors) -> OpenExecutor:
    """One device, in this process."""
    config = resolve(probe_caps(kind))
    return open_on(open_device(config.device.kind, config.device.cpu_threads), config, logits_processors)


def open_on(
    device: Device,
    config: EngineConfig,
    logits_processors: Processors = (),
    new_proposer: ProposerFactory = proposer_of,
) -> OpenExecutor:
    sections = (config.model, config.load, config.cache, config.scheduler, config.device, config.speculative)
    worker = Worker(device, WorkerConfig(*sections, config.lora), logits_processors, new_proposer)
    return OpenExecutor(worker, config, device.caps, device.queues_work, worker.layout, worker.vocab_size)

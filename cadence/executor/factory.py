"""Which executor an engine gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.device.base import DeviceCaps
from cadence.device.probe import probe_caps
from cadence.executor.base import Executor
from cadence.executor.worker import Worker

ExecutorFactory = Callable[[EngineConfig, Sequence[Callable[..., Any]]], Executor]  # (config, logits processors)


def device_caps(kind: str) -> DeviceCaps:
    """What the device can, before an executor is opened on it."""
    return probe_caps(kind)


def open_executor(config: EngineConfig, logits_processors: Sequence[Callable[..., Any]]) -> Executor:
    """One device, in this process."""
    return Worker(config, logits_processors)

"""What an engine gets with its executor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from cadence.config.engine_config import EngineConfig
from cadence.core.model.kv_spec import KVLayout
from cadence.device.base import DeviceCaps
from cadence.executor.interface.base import Executor

Processors = Sequence[Callable[..., Any]]  # on the logits of every request


@dataclass(frozen=True, slots=True)
class OpenExecutor:
    """An executor with its model loaded, and what the engine must know of both."""

    executor: Executor
    config: EngineConfig  # resolved for the device
    caps: DeviceCaps
    queues_work: bool  # forwards run while the host goes on; where not, `advance` returns when they have run
    layout: KVLayout
    vocab_size: int

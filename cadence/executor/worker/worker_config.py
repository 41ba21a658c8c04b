"""What a worker needs of its engine's configuration."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.engine_config import (
    CacheConfig,
    DeviceConfig,
    EngineConfig,
    LoadConfig,
    ModelConfig,
    SchedulerConfig,
)
from cadence.config.lora import NO_ADAPTERS, LoraConfig
from cadence.config.speculative import SpeculativeConfig


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """The sections of an engine's configuration that concern the device half."""

    model: ModelConfig
    load: LoadConfig
    cache: CacheConfig
    scheduler: SchedulerConfig
    device: DeviceConfig
    speculative: SpeculativeConfig
    lora: LoraConfig = NO_ADAPTERS

    @classmethod
    def of(cls, config: EngineConfig) -> WorkerConfig:
        return cls(
            model=config.model,
            load=config.load,
            cache=config.cache,
            scheduler=config.scheduler,
            device=config.device,
            speculative=config.speculative,
            lora=config.lora,
        )

"""The adapters of one device's model, or none."""

from __future__ import annotations

from dataclasses import dataclass

from cadence.config.lora import LoraConfig
from cadence.core.errors import ConfigError
from cadence.device.base import Device
from cadence.lora.limits import LoraLimits
from cadence.lora.model import LoraModel
from cadence.lora.store import AdapterStore
from cadence.lora.targets import AdaptableLM, find_targets
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import CausalLM


@dataclass(frozen=True, slots=True)
class WorkerAdapters:
    store: AdapterStore | None = None  # None: the engine has no adapters
    num_bytes: int = 0  # of the device's memory, that full slots take at most

    @property
    def opened(self) -> AdapterStore:
        if self.store is None:
            raise ConfigError("this engine has no adapters: start it with enable_lora", "enable_lora")
        return self.store

    def close(self) -> None:
        if self.store is not None:
            self.store.close()


def open_adapters(
    model: CausalLM, config: LoraConfig, device: Device, build: BuildContext, whole: AdaptableLM
) -> WorkerAdapters:
    """Around a model whose weights are loaded. build: what it was built with. whole: the model with all its stages, in
    shapes alone"""
    if not config.enabled:
        return WorkerAdapters()
    if not isinstance(model, AdaptableLM):
        raise ConfigError(f"enable_lora: adapters do not know models like {type(model).__name__}", "enable_lora")
    limits = LoraLimits(config.max_loras, config.max_lora_rank)
    elsewhere = _names(whole) - _names(model)
    lora = LoraModel(model, limits, device, build.ops.lora, build.dtype, build.ranks)
    if device.queues_work:  # where a forward is recorded for long, an adapter that comes later should not outdate it
        lora.adapt_everywhere()
    return WorkerAdapters(AdapterStore(lora, elsewhere), config.max_loras * lora.slot_bytes)


def _names(model: AdaptableLM) -> set[str]:
    """Of all that adapters may change, as their files have them."""
    return {name for target in find_targets(model) for part in target.parts for name in part.names}

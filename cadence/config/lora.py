"""What users may ask of LoRA adapters for a whole engine, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    from cadence.config.args import EngineArgs

_LEAST_ON_HOST = 8


@dataclass(frozen=True, slots=True)
class LoraConfig:
    max_loras: int = 0  # slots: most different adapters of running requests; 0 = requests have none
    max_lora_rank: int = 16
    max_cpu_loras: int = 0  # adapters kept in host memory

    @property
    def enabled(self) -> bool:
        return self.max_loras > 0


NO_ADAPTERS = LoraConfig()


def resolve_lora(args: EngineArgs) -> LoraConfig:
    if not args.enable_lora:
        return NO_ADAPTERS
    most = args.max_cpu_loras
    if most is not None and most < args.max_loras:
        raise ConfigError(
            f"max_cpu_loras={most} is below max_loras={args.max_loras}: what lies in a slot comes from host memory",
            "max_cpu_loras",
        )
    return LoraConfig(args.max_loras, args.max_lora_rank, most or max(_LEAST_ON_HOST, 2 * args.max_loras))

"""Over how many processes and devices an engine runs, resolved."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    from cadence.config.args import EngineArgs

BACKENDS = ("uni", "mp")  # the engine's own process, or one for each rank


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    backend: str = "uni"  # one of BACKENDS
    tensor_parallel_size: int = 1  # ranks that share each layer
    pipeline_parallel_size: int = 1  # stages, each with some of the layers

    @property
    def world_size(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in processes of its own, while the engine goes on."""
        return self.backend != "uni"


ONE_PROCESS = ParallelConfig()


def check_sizes(args: EngineArgs) -> None:
    """As soon as they are given."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if (size := getattr(args, name)) > 1:
            raise ConfigError(f"{name}={size} cannot be honoured: this version runs on one device", name)


def resolve_parallel(args: EngineArgs) -> ParallelConfig:
    sizes = (args.tensor_parallel_size, args.pipeline_parallel_size)
    return ParallelConfig(args.distributed_executor_backend or "uni", *sizes)

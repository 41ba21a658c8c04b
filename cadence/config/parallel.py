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
    data_parallel_size: int = 1  # engines, each with all of the above

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in processes of its own, while the engine goes on."""
        return self.backend != "uni"


ONE_PROCESS = ParallelConfig()


def check_sizes(args: EngineArgs) -> None:
    """As soon as they are given."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(args, name) > 1 and args.distributed_executor_backend == "uni":
            raise ConfigError(
                f"{name}={getattr(args, name)} needs a process for each rank: distributed_executor_backend=mp",
                "distributed_executor_backend",
            )
    read_partition(args)


def read_partition(args: EngineArgs) -> tuple[int, ...]:
    """Layers of each stage; () = as even as can be."""
    text = args.pp_layer_partition
    if not text:
        return ()
    try:
        counts = tuple(int(count) for count in text.split(","))
    except ValueError:
        counts = ()
    if len(counts) != args.pipeline_parallel_size or min(counts, default=0) < 1:
        raise ConfigError(
            f"pp_layer_partition={text!r} is to name the layers of each stage, at least 1, with commas between them: "
            f"as many numbers as pipeline_parallel_size={args.pipeline_parallel_size}",
            "pp_layer_partition",
        )
    return counts


def check_parts(args: EngineArgs, kind: str) -> None:
    """What ranks, and several engines, cannot do yet. kind: of device"""
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if getattr(args, name) > 1 and kind != "cpu":
            raise ConfigError(f"{name}={getattr(args, name)} is for the CPU so far", name)


def resolve_parallel(args: EngineArgs) -> ParallelConfig:
    sizes = (args.tensor_parallel_size, args.pipeline_parallel_size)
    backend = "mp" if max(sizes) > 1 else "uni"
    return ParallelConfig(args.distributed_executor_backend or backend, *sizes, args.data_parallel_size)

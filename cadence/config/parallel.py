"""Over how many processes and devices an engine runs, resolved."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from cadence.core.errors import ConfigError

if TYPE_CHECKING:
    from cadence.config.hf import HFConfig

SHARES_EXPERTS = "shares_experts"  # beside the options of an engine process
BACKENDS = ("uni", "mp", "ray")  # the engine's own process, one for each rank, or a Ray actor for each


class ParallelOptions(Protocol):
    """Those of `EngineArgs` that are read here."""

    distributed_executor_backend: str | None
    tensor_parallel_size: int
    pipeline_parallel_size: int
    pp_layer_partition: str
    data_parallel_size: int
    enable_expert_parallel: bool
    engine_number: int
    device_ids: list[int]
    nnodes: int
    node_rank: int
    master_addr: str
    master_port: int
    node_secret_file: str | None
    num_scheduler_steps: int | None
    kernels: str


@dataclass(frozen=True, slots=True)
class NodesConfig:
    """Machines that the user starts himself, each with its share of the ranks of all engines: those of an engine follow
    one another, and so do engines."""

    count: int = 1
    rank: int = 0  # of this one; the engines are on the first
    address: str = "127.0.0.1"  # where the first one waits for the others
    port: int = 29501  # of the first engine; the others have those after it
    secret_file: str = ""  # holds a secret that only they know


ONE_NODE = NodesConfig()


@dataclass(frozen=True, slots=True)
class ParallelConfig:
    backend: str = "uni"  # one of BACKENDS
    tensor_parallel_size: int = 1  # ranks that share each layer
    pipeline_parallel_size: int = 1  # stages, each with some of the layers
    data_parallel_size: int = 1  # engines, each with all of the above
    nodes: NodesConfig = ONE_NODE
    engine: int = 0  # which of them this is

    @property
    def world_size(self) -> int:
        """Ranks of an engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def ranks_on(self, node: int) -> range:
        """Those of this engine that run on a node."""
        each = self.world_size * self.data_parallel_size // self.nodes.count
        first = node * each - self.engine * self.world_size
        return range(max(0, first), min(self.world_size, first + each))

    @property
    def has_workers(self) -> bool:
        """Whether the model runs in processes of its own, while the engine goes on."""
        return self.backend != "uni"


ONE_PROCESS = ParallelConfig()


def check_sizes(args: ParallelOptions) -> None:
    """As soon as they are given."""
    for name in ("tensor_parallel_size", "pipeline_parallel_size"):
        if getattr(args, name) > 1 and args.distributed_executor_backend == "uni":
            raise ConfigError(
                f"{name}={getattr(args, name)} needs a process for each rank: distributed_executor_backend=mp",
                "distributed_executor_backend",
            )
    read_partition(args)


def read_partition(args: ParallelOptions) -> tuple[int, ...]:
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


def check_nodes(args: ParallelOptions) -> None:
    count, ranks = args.nnodes, args.tensor_parallel_size * args.pipeline_parallel_size
    total = ranks * args.data_parallel_size
    if args.node_rank >= count:
        raise ConfigError(f"node_rank={args.node_rank} is not below nnodes={count}", "node_rank")
    if count == 1:
        return
    if args.distributed_executor_backend not in (None, "mp"):
        raise ConfigError(
            f"nnodes={count} goes with distributed_executor_backend=mp, not {args.distributed_executor_backend}",
            "distributed_executor_backend",
        )
    if total % count:
        sizes = "tensor_parallel_size x pipeline_parallel_size x data_parallel_size"
        raise ConfigError(f"nnodes={count} does not divide {total} ranks ({sizes})", "nnodes")
    each = total // count
    if each % ranks and ranks % each:
        raise ConfigError(
            f"nnodes={count}: with {each} ranks on each, some engines of {ranks} ranks would lie on one node and "
            "others on two",
            "nnodes",
        )
    if not args.node_secret_file:
        raise ConfigError(
            f"nnodes={count} needs node_secret_file: a file with the same secret on every node "
            "(head -c 32 /dev/urandom | base64 > FILE)",
            "node_secret_file",
        )


def read_devices(given: Sequence[int], ranks: int, engines: int) -> tuple[int, ...]:
    """given: device_ids; ranks: of one engine, on this machine -> the GPU of each rank, of one engine, or of all of
    them one after another; () = by its number"""
    ids = tuple(given)
    if ids and (min(ids) < 0 or len(ids) not in (ranks, ranks * engines)):
        raise ConfigError(
            f"device_ids={_with_commas(ids)} is to name {ranks * engines} GPUs by their numbers, with commas between "
            "them: one for each rank (tensor_parallel_size x pipeline_parallel_size x data_parallel_size)",
            "device_ids",
        )
    return ids


def _with_commas(ids: Sequence[int]) -> str:
    return ",".join(map(str, ids))


def devices_by_engine(given: Sequence[int], ranks: int, engines: int) -> list[list[int]]:
    """The GPUs of each engine's ranks. What names those of one engine, names them for all."""
    ids = read_devices(given, ranks, engines) or tuple(range(ranks * engines))
    return [list((ids * engines)[engine * ranks :][:ranks]) for engine in range(engines)]


def assigned_devices(args: ParallelOptions) -> list[int]:
    """What one of several engines is told where the user names no GPU; [] for an engine alone."""
    ranks, engines = _ranks_here(args)
    return devices_by_engine((), ranks, engines)[args.engine_number % engines] if args.data_parallel_size > 1 else []


def devices_of(args: ParallelOptions) -> tuple[int, ...]:
    return read_devices(args.device_ids, *_ranks_here(args))


def _ranks_here(args: ParallelOptions) -> tuple[int, int]:
    """(ranks of an engine, engines) with ranks on one machine"""
    engines = max(1, args.data_parallel_size // args.nnodes)
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size * args.data_parallel_size
    return max(1, ranks // args.nnodes // engines), engines


def check_devices(args: ParallelOptions, count: int) -> None:
    """count: of the GPUs there are. Ray has machines of its own."""
    ids = devices_of(args)
    if ids and max(ids) >= count:
        raise ConfigError(f"device_ids={_with_commas(ids)}: there are {count} GPUs, numbered from 0", "device_ids")
    wanted = math.prod(_ranks_here(args))
    if not ids and wanted > count and args.distributed_executor_backend != "ray":
        sizes = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size")
        asked = [name for name in sizes if getattr(args, name) > 1]
        named = " and ".join(f"{name}={getattr(args, name)}" for name in asked)
        raise ConfigError(
            f"{named}: {wanted} GPUs are needed here, {count} are there; ranks share one that device_ids names twice",
            asked[0],
        )


def has_experts(hf: HFConfig) -> bool:
    return any(hf.get(name) for name in ("num_experts", "num_local_experts"))


def shares_experts(args: ParallelOptions, hf: HFConfig) -> bool:
    """Whether each engine has some of the experts, and all compute together."""
    return args.enable_expert_parallel and args.data_parallel_size > 1 and has_experts(hf)


def check_shared(args: ParallelOptions, dtype: str, kind: str) -> None:
    """What engines that share experts cannot do yet. dtype: of activations; kind: of device"""
    together = "enable_expert_parallel: engines that share experts"
    if kind != "cpu":
        raise ConfigError(f"{together} run on the CPU so far", "enable_expert_parallel")
    if args.distributed_executor_backend not in (None, "uni") or args.tensor_parallel_size > 1:
        raise ConfigError(f"{together} have one rank each so far", "enable_expert_parallel")
    if args.pipeline_parallel_size > 1:
        raise ConfigError(f"{together} have one stage each so far", "enable_expert_parallel")
    if (args.num_scheduler_steps or 1) > 1:
        raise ConfigError(f"{together} compute one forward at a time: num_scheduler_steps=1", "num_scheduler_steps")
    if args.kernels == "reference" or dtype == "float16":
        what = "kernels=reference" if args.kernels == "reference" else "dtype=float16"
        raise ConfigError(f"{together} need the C kernels of the CPU, and float32 or bfloat16: not {what}", "kernels")


def resolve_parallel(args: ParallelOptions) -> ParallelConfig:
    has_workers = max(args.tensor_parallel_size, args.pipeline_parallel_size, args.nnodes) > 1
    nodes = NodesConfig(
        count=args.nnodes,
        rank=args.node_rank,
        address=args.master_addr,
        port=args.master_port,
        secret_file=args.node_secret_file or "",
    )
    return ParallelConfig(
        backend=args.distributed_executor_backend or ("mp" if has_workers else "uni"),
        tensor_parallel_size=args.tensor_parallel_size,
        pipeline_parallel_size=args.pipeline_parallel_size,
        data_parallel_size=args.data_parallel_size,
        nodes=nodes,
        engine=args.engine_number,
    )

"""Where one rank stands among all: which slice of the tensors it has, and which stage of the layers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mesh:
    """Ranks of one stage follow one another: rank = pp_rank * tensor_parallel + tp_rank."""

    rank: int = 0
    tensor_parallel: int = 1  # ranks that share each layer
    pipeline_parallel: int = 1  # stages, each with some of the layers

    def __post_init__(self) -> None:
        if self.tensor_parallel < 1 or self.pipeline_parallel < 1 or not 0 <= self.rank < self.world_size:
            raise ValueError(
                f"rank {self.rank} is none of {self.tensor_parallel} x {self.pipeline_parallel}: sizes are at least 1, "
                f"ranks are below {self.world_size}"
            )

    @property
    def world_size(self) -> int:
        return self.tensor_parallel * self.pipeline_parallel

    @property
    def tp_rank(self) -> int:
        return self.rank % self.tensor_parallel

    @property
    def pp_rank(self) -> int:
        return self.rank // self.tensor_parallel

    @property
    def is_last_stage(self) -> bool:
        return self.pp_rank == self.pipeline_parallel - 1

    @property
    def is_driver(self) -> bool:
        """Whether results come from here: from the first rank of the last stage."""
        return self.is_last_stage and self.tp_rank == 0

    @property
    def driver(self) -> int:
        """The rank that results come from."""
        return (self.pipeline_parallel - 1) * self.tensor_parallel

    def at(self, rank: int) -> Mesh:
        """The same ranks, seen from another of them."""
        return Mesh(rank, self.tensor_parallel, self.pipeline_parallel)


ONE_RANK = Mesh()

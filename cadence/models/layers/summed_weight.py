"""A matrix of which each rank has some columns: a product is the sum of what all ranks have of it."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.kernels.interface.collectives import Collectives
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.weight import Weight


class SummedWeight(Weight):
    """The bias is added once, by the first rank."""

    def __init__(self, base: Weight, ranks: Collectives) -> None:
        self.base = base
        self._ranks = ranks
        self.rows, self.cols = base.rows, base.cols

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_reduce(self.base.linear(x, bias if self._ranks.rank == 0 else None, ctx))

    def takes_gate(self, rows: int) -> bool:
        return self.base.takes_gate(rows)

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext, *, terms: bool
    ) -> torch.Tensor:
        """Never in terms: what ranks exchange is one sum."""
        own = self.base.gated(x, bias if self._ranks.rank == 0 else None, gelu, ctx, terms=False)
        return self._ranks.all_reduce(own)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_reduce(self.base.logits(x, ctx))

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        raise TypeError("no rank has all of a row")

    def values_of(self, first: int, count: int) -> torch.Tensor:
        """The columns that this rank has."""
        return self.base.values_of(first, count)

    def wrapped(self, around: Callable[[Weight], Weight]) -> Weight:
        return SummedWeight(self.base.wrapped(around), self._ranks)

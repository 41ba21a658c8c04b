"""Weights and experts that ranks share. What the ranks compute together is put around them once they are loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch
from torch import nn

from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.expert_ops import Routes
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.experts import ExpertLinear, ExpertProduct, Experts
from cadence.models.layers.rank_share import Held
from cadence.models.layers.weight import Weight, WeightHolder

_Model = TypeVar("_Model", bound=nn.Module)


class SummedExperts:
    """Experts of which each rank has a part: what they make of tokens is the sum of what all ranks have of it. Every
    rank routes all tokens, and so to the same experts."""

    def __init__(self, base: ExpertProduct, ranks: Collectives) -> None:
        self._base = base
        self._ranks = ranks

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_reduce(self._base.product(x, routes, gelu, ctx))


class VocabularyWeight(Weight):
    """A matrix with a row for each token, of which each rank has some rows. Vectors and logits are of all tokens, and
    the same on every rank."""

    def __init__(self, base: Weight, held: Held, ranks: Collectives) -> None:
        self.base = base
        self.rows, self.cols = base.rows, base.cols
        self._held = held
        self._count, self._own = held.rows[""]
        self._ranks = ranks

    @property
    def innermost(self) -> Weight:
        return self.base.innermost

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_gather(self.base.linear(x, bias, ctx), self._count)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_gather(self.base.logits(x, ctx), self._count)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        found = self.base.lookup(self._ranks.own_ids(ids, self._own), scale, ctx)
        return self._ranks.all_pick(found, ids, len(self._own))

    def values_of(self, first: int, count: int) -> torch.Tensor:
        """Of the rows that this rank has."""
        return self.base.values_of(first, count)

    def wrapped(self, around: Callable[[Weight], Weight]) -> Weight:
        return VocabularyWeight(self.base.wrapped(around), self._held, self._ranks)


class SummedWeight(Weight):
    """A matrix of which each rank has some columns: a product is the sum of what all ranks have of it. The bias is
    added once, by the first rank."""

    def __init__(self, base: Weight, ranks: Collectives) -> None:
        self.base = base
        self._ranks = ranks
        self.rows, self.cols = base.rows, base.cols

    @property
    def innermost(self) -> Weight:
        return self.base.innermost

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


def joined(model: _Model, ranks: Collectives) -> _Model:
    """Of a map with some rows of an inner matrix nothing is to be done: what comes next takes this rank's part."""
    for module in model.modules():
        if isinstance(module, Experts):
            module.use(module.product if module.is_all or ranks.size == 1 else SummedExperts(module.product, ranks))
        elif isinstance(module, WeightHolder) and not module.held.is_all and not isinstance(module, ExpertLinear):
            module.use(_around(module, ranks))
    return model


def _around(holder: WeightHolder, ranks: Collectives) -> Weight:
    if holder.held.sums:
        return SummedWeight(holder.weight, ranks)
    return holder.weight if holder.inner else VocabularyWeight(holder.weight, holder.held, ranks)

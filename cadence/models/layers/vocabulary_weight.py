"""A matrix with a row for each token, of which each rank has some rows."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.kernels.interface.collectives import Collectives
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.rank_share import Held
from cadence.models.layers.weight import Weight


class VocabularyWeight(Weight):
    """Vectors and logits are of all tokens, and the same on every rank."""

    def __init__(self, base: Weight, held: Held, ranks: Collectives) -> None:
        self.base = base
        self.rows, self.cols = base.rows, base.cols
        self._held = held
        self._count, self._own = held.rows[""]
        self._ranks = ranks

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

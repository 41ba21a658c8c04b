"""A matrix with a row for each token, of which each rank has some rows."""

from __future__ import annotations

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
        self._count, self._own = held.rows[""]
        self._ranks = ranks

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_gather(self.base.linear(x, bias, ctx), self._count)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_gather(self.base.logits(x, ctx), self._count)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        found = self.base.lookup(self._ranks.own_ids(ids, self._own), scale, ctx)
        return self._ranks.all_pick(found, ids, len(self._own))

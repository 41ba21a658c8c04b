"""Experts of which each rank has a part: what they make of tokens is the sum of what all ranks have of it."""

from __future__ import annotations

import torch

from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.expert_ops import Routes
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.experts import ExpertProduct


class SummedExperts:
    """Every rank routes all tokens, and so to the same experts."""

    def __init__(self, base: ExpertProduct, ranks: Collectives) -> None:
        self._base = base
        self._ranks = ranks

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        return self._ranks.all_reduce(self._base.product(x, routes, gelu, ctx))

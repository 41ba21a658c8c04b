"""Layer norms of queries and keys, in which each head has a weight of its own."""

from __future__ import annotations

import torch
from torch import nn

from cadence.kernels.interface.ops import Triple
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext, ModelInputs
from cadence.models.layers.attention import Attention, AttentionSpec
from cadence.models.layers.derived import DerivedTable
from cadence.models.layers.head_rows import pair_order
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.positions.rotary import NoRotary, Rotary
from cadence.models.layers.rank_share import HeadShare


class _OneHead(nn.Module):
    def __init__(self, weight: torch.Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)


class HeadLayerNorm(DerivedTable):
    """Weights of all heads, as a checkpoint has them; and those of this rank's, entries in our order."""

    table: torch.Tensor  # [own heads, D]

    def __init__(self, build: BuildContext, heads: tuple[int, range], size: int, pairs: int, *, apart: bool) -> None:
        """heads: in all, own; pairs: as `head_orders` has it; apart: a checkpoint has a tensor for each"""
        super().__init__()
        count, self._own = heads
        self._stored = empty_parameter(build, count, size).data
        if apart:
            self.norms = nn.ModuleList(_OneHead(row) for row in self._stored)
        else:
            self.weight = nn.Parameter(self._stored, requires_grad=False)
        self._order = [entry for run in pair_order(size, pairs) for entry in run]
        self.register_buffer("table", torch.empty_like(self._stored[: len(self._own)]), persistent=False)

    def derive(self) -> None:
        self.table.copy_(self._stored[self._own.start : self._own.stop, self._order])


class HeadNormedAttention(Attention):
    def __init__(
        self,
        build: BuildContext,
        layer: int,
        spec: AttentionSpec,
        rotary: Rotary | NoRotary,
        eps: float,
        *,
        apart: bool = False,
    ) -> None:
        """apart: a checkpoint has a tensor for each head"""
        super().__init__(build, layer, spec, rotary)
        share, size, pairs = HeadShare.of(spec.shape, build.ranks), spec.shape.head_dim, rotary.neighbours
        self.q_norm = HeadLayerNorm(build, share.queries, size, pairs, apart=apart)
        self.k_norm = HeadLayerNorm(build, share.keys, size, pairs, apart=apart)
        self._eps = eps

    def heads(self, projected: torch.Tensor, inputs: ModelInputs, ctx: ForwardContext) -> Triple:
        q, k, v = super().heads(projected, inputs, ctx)
        q = ctx.ops.head_layer_norm(q, self.q_norm.table, self._eps)
        return q, ctx.ops.head_layer_norm(k, self.k_norm.table, self._eps), v

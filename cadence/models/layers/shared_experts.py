"""Experts of which each token takes a few, beside a feed-forward block that all tokens pass."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.experts import Experts, ExpertsSpec
from cadence.models.layers.linear import Linear
from cadence.models.layers.mlp import GatedMLP
from cadence.models.layers.norm import Norm
from cadence.models.layers.weight import Stream


class SharedExperts(nn.Module):
    """routed(x) + shared(x), where `gated` times a number between 0 and 1 of each token."""

    def __init__(self, build: BuildContext, spec: ExpertsSpec, intermediate: int, *, gated: bool) -> None:
        """intermediate: of the shared block"""
        super().__init__()
        self.routed = Experts(build, spec)
        self.shared = GatedMLP(build, spec.hidden, intermediate, spec.activation)
        self.gate = Linear(build, spec.hidden, 1) if gated else None

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        shared = self.shared(x, ctx)
        if self.gate is not None:
            shared = ctx.ops.states.sigmoid_gate(shared, self.gate(x, ctx))
        return ctx.ops.add(self.routed(x, ctx), shared)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        normed, total = norm.add(x, residual, ctx)
        return self(normed, ctx), total

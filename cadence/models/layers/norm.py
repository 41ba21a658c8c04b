"""Normalisation. `norm(x, ctx)` normalises; `norm.add(x, residual, ctx)` adds first and returns the sum as well.

`norm.add_linear` and `norm.add_gated` go on with the projection that follows: an RMS norm hands it the stream and its
own scale, so that a weight may do it all in one kernel.
"""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.linear import Gate, Linear
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.weight import RMSScale, Stream


class RMSNorm(nn.Module):
    """Over the last dimension. `wide` keeps the weight in float32 whatever the model's dtype is.

    Gemma scales by 1 + w: its weight maps add the 1 while loading into a wide weight, so nothing is rounded.
    """

    weight: nn.Parameter  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, wide: bool = False) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size, dtype=torch.float32 if wide else build.dtype)
        self.eps = eps
        self._scale = RMSScale(self.weight, eps)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        return ctx.ops.add_rms_norm(x, residual, self.weight, self.eps)

    def add_linear(self, x: torch.Tensor, residual: torch.Tensor, linear: Linear, ctx: ForwardContext) -> Stream:
        return linear.after_norm((x, residual), self._scale, ctx)

    def add_gated(
        self, x: torch.Tensor, residual: torch.Tensor, gate_up: Linear, gate: Gate, ctx: ForwardContext
    ) -> Stream:
        return gate_up.gated_after_norm((x, residual), self._scale, gate.gelu, ctx)


class UnscaledNorm(nn.Module):
    """An RMS norm without a weight."""

    def __init__(self, build: BuildContext, size: int, eps: float) -> None:
        super().__init__()
        self.weight = torch.ones(size, dtype=build.dtype, device=build.device)
        self.eps = eps

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.rms_norm(x, self.weight, self.eps)


class UnfusedNorm(nn.Module):
    """One that no product takes along: the projection comes after it."""

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        raise NotImplementedError

    def add_linear(self, x: torch.Tensor, residual: torch.Tensor, linear: Linear, ctx: ForwardContext) -> Stream:
        normed, total = self.add(x, residual, ctx)
        return linear(normed, ctx), total

    def add_gated(
        self, x: torch.Tensor, residual: torch.Tensor, gate_up: Linear, gate: Gate, ctx: ForwardContext
    ) -> Stream:
        normed, total = self.add(x, residual, ctx)
        return gate(gate_up(normed, ctx), ctx), total


class LayerNorm(UnfusedNorm):
    """Over the last dimension, with mean; `affine=False` has no weights at all."""

    weight: nn.Parameter | None  # [size]
    bias: nn.Parameter | None  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, affine: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size) if affine else None
        self.bias = empty_parameter(build, size) if affine and bias else None
        self.eps = eps

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        return ctx.ops.add_layer_norm((x, residual), self.weight, self.bias, self.eps)


class NoNorm(UnfusedNorm):
    """Where a family has no norm at a place that others have one."""

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return x

    def add(self, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext) -> Stream:
        total = ctx.ops.add(x, residual)
        return total, total


Norm = RMSNorm | LayerNorm | NoNorm

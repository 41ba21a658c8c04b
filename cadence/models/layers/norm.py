"""Normalisation. `norm(x)` normalises; `norm.add(x, residual)` adds first and returns the sum as well.

`norm.add_linear` and `norm.add_gated` go on with the projection that follows, which some norms do in one kernel.
"""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.build import BuildContext
from cadence.models.layers.linear import Gate, Linear
from cadence.models.layers.parameter import empty_parameter

# x, residual: [T, hidden] each, or what was made of x. Where an RMS norm comes next, x may be terms [P, T, hidden].
Stream = tuple[torch.Tensor, torch.Tensor]


class RMSNorm(nn.Module):
    """Over the last dimension. `wide` keeps the weight in float32 whatever the model's dtype is.

    Gemma scales by 1 + w: its weight maps add the 1 while loading into a wide weight, so nothing is rounded.
    """

    weight: nn.Parameter  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, wide: bool = False) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size, dtype=torch.float32 if wide else build.dtype)
        self.eps = eps
        self._ops = build.ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> Stream:
        return self._ops.add_rms_norm(x, residual, self.weight, self.eps)

    def add_linear(self, x: torch.Tensor, residual: torch.Tensor, linear: Linear) -> Stream:
        return self._ops.add_norm_linear(x, residual, self.weight, self.eps, linear.weight, linear.bias)

    def add_gated(self, x: torch.Tensor, residual: torch.Tensor, gate_up: Linear, gate: Gate) -> Stream:
        weights = (gate_up.weight, gate_up.bias)
        return self._ops.add_norm_gated(x, residual, self.weight, self.eps, *weights, gate.gelu)


class LayerNorm(nn.Module):
    """Over the last dimension, with mean and bias; `affine=False` has no weights at all."""

    weight: nn.Parameter | None  # [size]
    bias: nn.Parameter | None  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size) if affine else None
        self.bias = empty_parameter(build, size) if affine else None
        self._eps = eps
        self._ops = build.ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.layer_norm(x, self.weight, self.bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> Stream:
        return self._ops.add_layer_norm(x, residual, self.weight, self.bias, self._eps)

    def add_linear(self, x: torch.Tensor, residual: torch.Tensor, linear: Linear) -> Stream:
        normed, total = self.add(x, residual)
        return linear(normed), total

    def add_gated(self, x: torch.Tensor, residual: torch.Tensor, gate_up: Linear, gate: Gate) -> Stream:
        normed, total = self.add(x, residual)
        return gate(gate_up(normed)), total


class NoNorm(nn.Module):
    """Where a family has no norm at a place that others have one."""

    def __init__(self, build: BuildContext) -> None:
        super().__init__()
        self._ops = build.ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> Stream:
        total = self._ops.add(x, residual)
        return total, total

    def add_linear(self, x: torch.Tensor, residual: torch.Tensor, linear: Linear) -> Stream:
        total = self._ops.add(x, residual)
        return linear(total), total

    def add_gated(self, x: torch.Tensor, residual: torch.Tensor, gate_up: Linear, gate: Gate) -> Stream:
        total = self._ops.add(x, residual)
        return gate(gate_up(total)), total


Norm = RMSNorm | LayerNorm | NoNorm

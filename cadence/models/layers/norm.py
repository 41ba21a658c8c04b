"""Normalisation. `norm(x)` normalises; `norm.add(x, residual)` adds first and returns the sum as well."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from cadence.models.build import BuildContext
from cadence.models.layers.parameter import empty_parameter


class RMSNorm(nn.Module):
    """Over the last dimension. `wide` keeps the weight in float32 whatever the model's dtype is.

    Gemma scales by 1 + w: its weight maps add the 1 while loading into a wide weight, so nothing is rounded.
    """

    weight: nn.Parameter  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, wide: bool = False) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size, dtype=torch.float32 if wide else build.dtype)
        self._eps = eps
        self._ops = build.ops

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._ops.rms_norm(x, self.weight, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self._ops.add_rms_norm(x, residual, self.weight, self._eps)


class LayerNorm(nn.Module):
    """Over the last dimension, with mean and bias; `affine=False` has no weights at all."""

    weight: nn.Parameter | None  # [size]
    bias: nn.Parameter | None  # [size]

    def __init__(self, build: BuildContext, size: int, eps: float, *, affine: bool = True) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size) if affine else None
        self.bias = empty_parameter(build, size) if affine else None
        self._shape = (size,)
        self._eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.layer_norm(x, self._shape, self.weight, self.bias, self._eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return self(total), total


class NoNorm(nn.Module):
    """Where a family has no norm at a place that others have one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        total = x + residual
        return total, total


Norm = RMSNorm | LayerNorm | NoNorm

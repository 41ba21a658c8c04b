"""Weights come from a loader: parameters are allocated and left as they are."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.build import BuildContext


def empty_matrix(build: BuildContext, rows: int, cols: int) -> nn.Parameter:
    """The weight [rows, cols] of a product or a lookup."""
    device = torch.device("meta") if build.packs else build.device
    return nn.Parameter(torch.empty((rows, cols), dtype=build.dtype, device=device), requires_grad=False)


def empty_parameter(build: BuildContext, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter of the given shape, in the model's dtype unless another is named."""
    return nn.Parameter(torch.empty(shape, dtype=dtype or build.dtype, device=build.device), requires_grad=False)

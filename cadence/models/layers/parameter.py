"""Weights come from a loader: parameters are allocated and left as they are."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.build import BuildContext


def empty_parameter(build: BuildContext, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter of the given shape, in the model's dtype unless another is named."""
    return nn.Parameter(torch.empty(shape, dtype=dtype or build.dtype, device=build.device), requires_grad=False)

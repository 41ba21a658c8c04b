"""Weights come from a loader: parameters are allocated and left as they are."""

from __future__ import annotations

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.layers.rank_share import Held
from cadence.models.layers.weight import DenseWeight


def empty_weight(build: BuildContext, rows: int, cols: int) -> DenseWeight:
    """The matrix of a product or a lookup; where the loader is to pack it, a shape without memory."""
    device = torch.device("meta") if build.ops.packs else build.device
    return DenseWeight(torch.empty((rows, cols), dtype=build.dtype, device=device))


def empty_parameter(build: BuildContext, *shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """An uninitialised parameter of the given shape, in the model's dtype unless another is named."""
    return nn.Parameter(torch.empty(shape, dtype=dtype or build.dtype, device=build.device), requires_grad=False)


class HeldRows(nn.Module):
    """A module with parameters of its own, of whose rows ranks have some each."""

    def __init__(self, held: Held) -> None:
        """held: what of a checkpoint's tensors these are"""
        super().__init__()
        self.held = held

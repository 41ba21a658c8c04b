"""Who takes a model's matrices in a form of its own, instead of having them copied into parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from cadence.models.loader.source import WeightsSource
from cadence.models.weight_map import Rule

Piece = tuple[str, Rule]  # a tensor of the checkpoint, and how it differs from ours


class Packing(Protocol):
    def fill(self, modules: Sequence[nn.Module], pieces: Sequence[Piece], source: WeightsSource) -> bool:
        """Gives modules that share a matrix one stacked of `pieces` in order; False = it is to be copied."""
        ...

    def give(self, modules: Sequence[nn.Module], values: torch.Tensor) -> None:
        """Gives modules that share a matrix these values [rows, cols]."""
        ...


class NoPacking:
    """Every matrix is a parameter."""

    def fill(self, modules: Sequence[nn.Module], pieces: Sequence[Piece], source: WeightsSource) -> bool:
        return False

    def give(self, modules: Sequence[nn.Module], values: torch.Tensor) -> None:
        for module in modules:
            module.weight.data.copy_(values)

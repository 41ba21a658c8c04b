"""Where the tensors that a model's rules name come from, in a checkpoint that has them otherwise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import torch

ShapeOf = Callable[[str], tuple[int, ...]]  # of a tensor of the checkpoint


@dataclass(frozen=True, slots=True)
class StackPart:
    """A matrix out of a stack of them."""

    stack: str  # [count, rows, cols]
    index: int
    rows: tuple[int, int]


class Conversion(Protocol):
    """Some tensors made of others."""

    def run(self, load: Callable[[str], torch.Tensor]) -> dict[str, torch.Tensor]:
        """load: gives tensors of the checkpoint -> all that it makes, by their names"""
        ...


@dataclass(slots=True)
class TensorPlan:
    """Each tensor's name as the model's rules have it -> what it is in the checkpoint."""

    plain: dict[str, str] = field(default_factory=dict)  # its name there
    parts: dict[str, StackPart] = field(default_factory=dict)
    made: dict[str, Conversion] = field(default_factory=dict)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)  # of what is made

    def named(self, stored: str) -> str:
        """What a tensor of the checkpoint is called here, where that is all that differs."""
        return next((name for name, own in self.plain.items() if own == stored), stored)

"""Experts: feed-forward blocks of which each token takes a few. `reference`, `triton` and `cpu` each offer these ops.

Which expert gets which tokens is found out on the device, by ops of fixed shapes: a recorded forward serves any routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.matrix import PackedMatrix

# (ids [T, top_k] int32, the highest first and the lower id among equals; shares [T, top_k] float32), both contiguous
Routes = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token chooses its experts."""

    top_k: int
    renormalise: bool  # shares of those that were chosen add up to 1; else they are probabilities among all
    rounded: bool  # shares are rounded to the type of x
    sigmoid: bool = False  # shares are sigmoids of the logits, each by itself, and the highest logits are taken


@dataclass(frozen=True, slots=True)
class ExpertStack:
    """Experts [first, first + E): of others nothing is added."""

    gate_up: torch.Tensor  # [E, 2 * I, H]
    down: torch.Tensor  # [E, H, I]
    first: int = 0


class PackedExperts(Protocol):
    """Experts in the form of the kernels that packed their matrices."""

    def held(self) -> Sequence[object]:
        """As that of a `PackedMatrix`."""
        ...

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool) -> torch.Tensor:
        """As that of `ExpertOps`."""
        ...


class ExpertOps(Protocol):
    def route(self, x: torch.Tensor, weight: torch.Tensor, routing: Routing) -> Routes:
        """x [T, H], weight [E, H]: linear(x, weight) rounded to x's dtype, softmax over E in float32, the highest."""
        ...

    def weigh_inputs(self, x: torch.Tensor, routes: Routes) -> tuple[torch.Tensor, Routes]:
        """Of tokens with one route each, x [T, H]: (x times the share of its route, in float32 and rounded to x's
        dtype; the same routes with shares of 1). Experts then take weighted inputs, and their outputs count whole."""
        ...

    def product(self, x: torch.Tensor, routes: Routes, stack: ExpertStack, gelu: bool) -> torch.Tensor:
        """x [T, H] -> [T, H]: the sum of share * down(act(gate(x)) * up(x)) of each token's experts, added in float32
        in the order of its routes and rounded once; act is gelu_tanh or silu. A token's bits are its own alone."""
        ...

    def packed(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, dtype: torch.dtype
    ) -> PackedExperts:
        """matrices: (gate and up [2 * I, H], down [H, I]) of each expert from the first on, packed for these ops, which
        may keep them in another form; dtype: of activations"""
        ...

    def shared(
        self, matrices: Sequence[tuple[PackedMatrix, PackedMatrix]], first: int, total: int, ranks: Collectives
    ) -> PackedExperts:
        """Of so many experts in all, `ranks` have some each, as `part_of` deals them out, and tokens of their own. All
        of them call `product` as often; of its tokens each gets the bits that it would get with all experts."""
        ...

"""What ranks that share a model's layers compute together. Every rank calls the same, in the same order."""

from __future__ import annotations

from typing import Protocol

import torch

from cadence.core.errors import CadenceError


class CollectiveAbortedError(CadenceError):
    """Another rank is gone, or did not ask for the same: results since the last `check` are none."""


class Collectives(Protocol):
    rank: int
    size: int  # ranks

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """x of any shape -> the sum over ranks, added in float32 in the order of ranks: the same bits on all of
        them."""
        ...

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """x [..., n] -> [..., size * n]: those of rank 0, then of rank 1, ..."""
        ...

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        """-> x of the rank `root`; that of others gives shape and type alone"""
        ...

    def check(self) -> None:
        """Raises CollectiveAbortedError; to be called before results are used."""
        ...


class OneRank:
    """Nobody to share with."""

    rank, size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def broadcast(self, x: torch.Tensor, root: int) -> torch.Tensor:
        return x

    def check(self) -> None:
        """Nobody can be gone."""


ONE_RANK = OneRank()

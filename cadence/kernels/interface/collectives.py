"""What ranks that share a model's layers compute together. Every rank calls the same, in the same order."""

from __future__ import annotations

from dataclasses import dataclass
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

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        """x [..., n] -> [..., width]: those of rank r begin at min(r * n, width - n), and are the same where two ranks
        have the same place. width: 0 = size * n"""
        ...

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        """ids [T] int32 -> their places in `own`; 0 of those that are not there"""
        ...

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        """x [T, n] -> line t of the rank that has ids[t]: of rank ids[t] // each."""
        ...

    def check(self) -> None:
        """Raises CollectiveAbortedError; to be called before results are used."""
        ...


class OneRank:
    """One rank has everything."""

    rank, size = 0, 1

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        return x

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        return ids

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        return x

    def check(self) -> None:
        """No other rank can be gone."""


ONE_RANK = OneRank()


@dataclass(frozen=True, slots=True)
class RankPlace(OneRank):
    """Where a rank stands, for what computes nothing."""

    rank: int
    size: int

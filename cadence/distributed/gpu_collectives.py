"""Collectives of ranks that have a GPU each. Every call queues work and may be captured in a graph."""

from __future__ import annotations

from collections.abc import Callable

import torch

from cadence.distributed.exchange import Exchange
from cadence.kernels.reference import collectives as reference

ONE_SHOT_BYTES = 1 << 18  # of a message that every rank reads from every other: what decode steps have


class GpuCollectives:
    """Messages of decode steps are small and go one way, all others another."""

    def __init__(self, rank: int, size: int, exchanges: tuple[Exchange, Exchange], check: Callable[[], None]) -> None:
        """exchanges: for small messages, and for large ones. check: whether all ranks are there"""
        self.rank, self.size = rank, size
        self._small, self._large = exchanges
        self._check = check

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return self._by(x).sum(x)

    def all_gather(self, x: torch.Tensor, width: int = 0) -> torch.Tensor:
        own, parts = x.shape[-1], self._by(x).gather(x)
        width = width or self.size * own
        out = x.new_empty((*x.shape[:-1], width))
        for rank, part in enumerate(parts.unbind()):
            out.narrow(-1, min(rank * own, width - own), own).copy_(part)
        return out

    def own_ids(self, ids: torch.Tensor, own: range) -> torch.Tensor:
        return reference.own_ids(ids, own)

    def all_pick(self, x: torch.Tensor, ids: torch.Tensor, each: int) -> torch.Tensor:
        """Others' lines are zero here, so a sum has the value of the one that counts."""
        is_own = (ids // each == self.rank).unsqueeze(1)
        return self.all_reduce(torch.where(is_own, x, torch.zeros((), dtype=x.dtype, device=x.device)))

    def check(self) -> None:
        self._check()

    def _by(self, x: torch.Tensor) -> Exchange:
        return self._small if x.nbytes <= ONE_SHOT_BYTES else self._large

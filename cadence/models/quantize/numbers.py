"""The numbers that a format stores for the entries of a matrix, before scales."""

from __future__ import annotations

from typing import Protocol

import torch


class Numbers(Protocol):
    low: float
    high: float

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        """float32 -> the nearest of these numbers, ties to even, float32"""
        ...


class WholeNumbers:
    """Signed integers of some bits."""

    def __init__(self, bits: int) -> None:
        self.low, self.high = -float(1 << (bits - 1)), float((1 << (bits - 1)) - 1)

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        return x.round().clamp_(self.low, self.high)


class Float8Numbers:
    """E4M3, without infinities."""

    low, high = -448.0, 448.0

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        return x.clamp(self.low, self.high).to(torch.float8_e4m3fn).float()


class Float4Numbers:
    """E2M1: 0, 0.5, 1, 1.5, 2, 3, 4, 6 and their negatives."""

    low, high = -6.0, 6.0

    def nearest(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clamp(self.low, self.high)
        size = x.abs()
        step = torch.where(size < 2.0, 0.5, torch.where(size < 4.0, 1.0, 2.0))
        return (x / step).round_().mul_(step)

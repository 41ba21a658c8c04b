"""Matrices of small numbers with scales, as checkpoints have them: for kernels that take these as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True, slots=True)
class ScaledNumbers:
    """W[r, c] = (numbers[r, c] - zeros[r, g]) * scales[r, g], where g is the group of column c; groups are runs of one
    length."""

    numbers: torch.Tensor  # [rows, cols] uint8, or int8 or float8_e4m3fn, which have no zeros
    scales: torch.Tensor  # [rows, groups] of any float type
    zeros: torch.Tensor | int = 0  # [rows, groups] integers, or one for all
    bits: int = 8  # of the numbers
    is_fp4: bool = False  # numbers are codes of E2M1, without zeros
    table: torch.Tensor | None = None  # [16] float32: numbers are its indices, without zeros

    def of_rows(self, ranges: Sequence[range]) -> ScaledNumbers:
        zeros = self.zeros if isinstance(self.zeros, int) else kept(self.zeros, 0, ranges)
        return replace(self, numbers=kept(self.numbers, 0, ranges), scales=kept(self.scales, 0, ranges), zeros=zeros)

    def of_columns(self, ranges: Sequence[range]) -> ScaledNumbers | None:
        """None where a group is cut, and has not the only scale of its row."""
        numbers, groups = kept(self.numbers, 1, ranges), self.scales.shape[1]
        if groups == 1:
            return replace(self, numbers=numbers)
        length = self.numbers.shape[1] // groups
        if any(edge % length for own in ranges for edge in (own.start, own.stop)):
            return None
        of_groups = [range(own.start // length, own.stop // length) for own in ranges]
        zeros = self.zeros if isinstance(self.zeros, int) else kept(self.zeros, 1, of_groups)
        return replace(self, numbers=numbers, scales=kept(self.scales, 1, of_groups), zeros=zeros)


def kept(tensor: torch.Tensor, dim: int, ranges: Sequence[range]) -> torch.Tensor:
    """These of its slices, in order; a view where they are one run."""
    every = (slice(None),) * dim
    parts = [tensor[(*every, slice(own.start, own.stop, own.step))] for own in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)

"""Positions with axes: what turns a token whose place has a time, a line and a column. `reference`, `triton` and `cpu`
each offer these ops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from cadence.kernels.interface.row_ops import StepBatch


@dataclass(frozen=True, slots=True)
class RopeSegments:
    """Where the tokens of every row stand, as `MediaInput` says it."""

    lines: torch.Tensor  # [num_rows, most, SEGMENT] int32
    counts: torch.Tensor  # [num_rows] int32, strided: segments of a row; 0: all axes are its positions


@dataclass(frozen=True, slots=True)
class AxesTable:
    """A model's cosines and sines, and which axis of a position each of them is of."""

    cos_sin: torch.Tensor  # [max_len, rotary_dim] float32: cosines, then sines
    axis_of: torch.Tensor  # [rotary_dim / 2] int32: 0, 1 or 2; [0]: positions have one axis

    @property
    def has_axes(self) -> bool:
        return bool(self.axis_of.numel())


NO_AXES = AxesTable(torch.empty((0, 0)), torch.empty(0, dtype=torch.int32))


class RopeOps(Protocol):
    def turns(self, segments: RopeSegments, batch: StepBatch, table: AxesTable, out: torch.Tensor) -> None:
        """After `gather`: the cosines and sines of each token of the batch -> out [T, rotary_dim] float32.

        A token at position p stands where the last segment that begins at p or before puts it; before the first segment
        all its axes are p. Entry j of its cosines, and of its sines, is that of the table at axis axis_of[j]; an axis
        beyond the table is taken as its last line. What lies after the last run gets the table's first line."""
        ...

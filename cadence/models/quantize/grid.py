"""What the entries of one matrix may be once its scales are chosen."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from cadence.models.quantize.numbers import Numbers


@dataclass(frozen=True, slots=True)
class Grid:
    """(number - zero) * scale, with one scale and one zero for each cell of so many rows and columns."""

    numbers: Numbers
    cell: tuple[int, int]  # rows, columns
    scales: torch.Tensor  # [cells of rows, cells of columns] float32, positive: as the format stores them
    zeros: torch.Tensor  # [cells of rows, cells of columns] float32, numbers of the format
    whole: float = 1.0  # what stored scales are divided by

    def nearest(self, values: torch.Tensor) -> torch.Tensor:
        """[rows, cols] float32 -> what it may be instead"""
        scales, zeros = self.of_columns(*values.shape)
        return (self.numbers.nearest(values / scales + zeros) - zeros) * scales

    def codes(self, values: torch.Tensor) -> torch.Tensor:
        """values [rows, cols] float32 -> the number stored for each"""
        scales, zeros = self.of_columns(*values.shape)
        return self.numbers.nearest(values / scales + zeros)

    def of_columns(self, rows: int, cols: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Of a matrix of this size, scales and zeros [rows, cols], or [rows, 1] where columns have the same."""
        columns = torch.arange(cols)
        return self._along(self.scales, rows, columns), self._along(self.zeros, rows, columns)

    def of_rows(self, rows: slice) -> Grid:
        """Of some rows, where each has its own cells."""
        return replace(self, scales=self.scales[rows], zeros=self.zeros[rows])

    def _along(self, table: torch.Tensor, rows: int, columns: torch.Tensor) -> torch.Tensor:
        """-> [rows, n], or [rows, 1] where all columns are of one cell"""
        height, width = self.cell
        one = table if table.shape[1] == 1 else table[:, columns // width]
        return one if height == 1 else one.repeat_interleave(height, dim=0)[:rows]

"""Scales and zeros for a matrix: of every cell those with the least error, among some ranges."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.models.quantize.formats import WeightFormat
from cadence.models.quantize.grid import Grid
from cadence.models.quantize.numbers import Numbers
from cadence.models.quantize.scale_codes import ScaleCode

_CHUNK = 1 << 18  # entries at once: temporaries stay in a cache


def choose_grid(weight: torch.Tensor, form: WeightFormat, dtype: torch.dtype, importance: torch.Tensor) -> Grid:
    """weight [rows, cols], importance [cols]: float32, what squared errors of a column count; dtype: of scales that
    have no type of their own"""
    rows, cols = weight.shape
    height, width = cell = form.cell(cols)
    code, numbers = form.scale_code(dtype), form.numbers
    whole = code.whole(float(weight.abs().max()))
    across = -(-cols // width)
    counts = F.pad(importance, (0, across * width - cols)).view(1, across, 1, width).expand(1, across, height, width)
    search = _ScaleSearch(numbers, code, whole, form.ranges, counts.reshape(1, across, -1))
    step = max(1, _CHUNK // (height * across * width)) * height
    parts = [_cells(weight[start : start + step], cell) for start in range(0, rows, step)]
    found = [search.symmetric(part) if form.symmetric else search.shifted(part) for part in parts]
    scales, zeros = (torch.cat([pair[index] for pair in found]) for index in (0, 1))
    return Grid(numbers, cell, scales, zeros, whole)


class _ScaleSearch:
    def __init__(
        self, numbers: Numbers, code: ScaleCode, whole: float, ranges: tuple[float, ...], importance: torch.Tensor
    ) -> None:
        self._numbers = numbers
        self._code = code
        self._whole = whole
        self._ranges = ranges
        self._importance = importance  # [1, cells, entries of a cell]

    def symmetric(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cells [n, cells, entries] -> scales, zeros [n, cells]"""
        top = cells.abs().amax(-1)
        best = torch.full_like(top, torch.inf)
        scales, zeros = torch.ones_like(top), torch.zeros_like(top)
        for part in self._ranges:
            tried = self._code.nearest(top * (part / self._numbers.high), self._whole)
            error = self._error(cells, tried, zeros)
            better = error < best
            best, scales = torch.where(better, error, best), torch.where(better, tried, scales)
        return scales, zeros

    def shifted(self, cells: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The same, of numbers that need not lie around zero, which is always among them."""
        low, high = cells.amin(-1).clamp(max=0.0), cells.amax(-1).clamp(min=0.0)
        best = torch.full_like(low, torch.inf)
        scales, zeros = torch.ones_like(low), torch.zeros_like(low)
        steps = self._numbers.high - self._numbers.low
        for part in self._ranges:
            tried = self._code.nearest((high - low) * (part / steps), self._whole)
            shift = self._numbers.nearest(self._numbers.low - low * part / tried)
            error = self._error(cells, tried, shift)
            better = error < best
            best, scales = torch.where(better, error, best), torch.where(better, tried, scales)
            zeros = torch.where(better, shift, zeros)
        return scales, zeros

    def _error(self, cells: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> torch.Tensor:
        if len(self._ranges) == 1:
            return torch.zeros_like(scales)  # nothing to choose
        scales, zeros = scales[..., None], zeros[..., None]
        rounded = (self._numbers.nearest(cells / scales + zeros) - zeros) * scales
        return (rounded.sub_(cells).square_() * self._importance).sum(-1)


def _cells(rows: torch.Tensor, cell: tuple[int, int]) -> torch.Tensor:
    """[rows, cols] -> [cells of rows, cells of columns, entries of a cell], with zeros where the matrix ends"""
    height, width = cell
    down, across = -(-rows.shape[0] // height), -(-rows.shape[1] // width)
    padded = F.pad(rows, (0, across * width - rows.shape[1], 0, down * height - rows.shape[0]))
    return padded.view(down, height, across, width).transpose(1, 2).reshape(down, across, -1)

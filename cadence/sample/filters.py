"""What changes the logits of rows that draw. Greedy rows pass through unchanged.

Filters keep nothing of their own: they read the `SamplingTable`. A new one is a class here, a line of `make_filters`
and, where its field of `SamplingParams` is a float, a name in `FLOATS`.
"""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import BoolArray
from cadence.device.base import Device
from cadence.sample.context import LogitsStep, SampleContext
from cadence.sample.lines import NOTHING, LineIndex, LinePicker, in_pieces
from cadence.sample.params import SamplingTable
from cadence.sample.top_tokens import top_tokens

FLOATS = ("top_p", "min_p")  # fields of `SamplingParams` that filters read, beside the temperature and top_k
_CANDIDATES = 1024  # for top_p: nearly always more than it keeps


def make_filters(device: Device, table: SamplingTable, vocab_size: int) -> list[LogitsStep]:
    """In the order in which they run."""
    return [
        Temperature(table),
        MinP(device, table),
        TopK(device, table, vocab_size),
        TopP(device, table, vocab_size),
    ]


class Temperature:
    def __init__(self, table: SamplingTable) -> None:
        self._temperatures = table.scalars.get("temperature")
        self._temperatures_np = table.scalars.get_np("temperature")

    def active(self, rows_np: np.ndarray) -> bool:
        return bool((self._temperatures_np[rows_np] != 1.0).any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        return logits.div_(self._temperatures[ctx.rows, None])


class MinP:
    """Drops tokens less likely than min_p times the most likely one."""

    def __init__(self, device: Device, table: SamplingTable) -> None:
        self._min_p = table.scalars.get("min_p")
        self._min_p_np = table.scalars.get_np("min_p")
        self._lines = LinePicker(device)

    def active(self, rows_np: np.ndarray) -> bool:
        return bool((self._min_p_np[rows_np] > 0.0).any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        def keep_likely(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            # p / p_max >= min_p, taken to logarithms
            least = part.amax(dim=-1, keepdim=True) + self._min_p[ctx.rows[lines], None].log()
            return part.masked_fill(part < least, NOTHING)

        return self._lines.change(logits, self._min_p_np[ctx.rows_np] > 0.0, keep_likely)


class TopK:
    """Keeps the k most likely tokens; with top_p, only the leading ones of these. Sorts nothing longer than k."""

    def __init__(self, device: Device, table: SamplingTable, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._top_k, self._top_p = table.scalars.get("top_k"), table.scalars.get("top_p")
        self._top_k_np = table.scalars.get_np("top_k")
        self._lines = LinePicker(device)

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._limits(rows_np).any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        limits_np = self._limits(ctx.rows_np)
        widest = int(self._top_k_np[ctx.rows_np][limits_np].max())

        def keep_top(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            rows = ctx.rows[lines]
            ids = top_tokens(part, widest)
            ranks = torch.arange(widest, device=part.device)
            top = part.gather(1, ids).masked_fill(ranks >= self._top_k[rows, None], NOTHING)
            top = top.masked_fill(beyond_mass(top, top, self._top_p[rows]), NOTHING)
            return torch.full_like(part, NOTHING).scatter(1, ids, top)

        return self._lines.change(logits, limits_np, in_pieces(keep_top))

    def _limits(self, rows_np: np.ndarray) -> BoolArray:
        return _limits_top_k(self._top_k_np[rows_np], self._vocab_size)


class TopP:
    """Keeps the smallest set of most likely tokens that together reach the mass top_p, for rows without top_k."""

    def __init__(self, device: Device, table: SamplingTable, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        # Where nothing is in flight, asking whether the first candidates were enough costs nothing.
        self._candidates = min(_CANDIDATES, vocab_size) if device.caps.kind == "cpu" else vocab_size
        self._top_p = table.scalars.get("top_p")
        self._top_p_np, self._top_k_np = table.scalars.get_np("top_p"), table.scalars.get_np("top_k")
        self._lines = LinePicker(device)

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self._limits(rows_np).any())

    def apply(self, logits: torch.Tensor, ctx: SampleContext) -> torch.Tensor:
        def keep_leading(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            top_p = self._top_p[ctx.rows[lines]]
            if self._candidates == self._vocab_size:
                return leading_by_sort(part, top_p)
            return leading_of_candidates(part, top_p, self._candidates)

        return self._lines.change(logits, self._limits(ctx.rows_np), in_pieces(keep_leading))

    def _limits(self, rows_np: np.ndarray) -> BoolArray:
        limits_np: BoolArray = self._top_p_np[rows_np] < 1.0
        return limits_np & ~_limits_top_k(self._top_k_np[rows_np], self._vocab_size)


def _limits_top_k(top_k_np: np.ndarray, vocab_size: int) -> BoolArray:
    """[S] -> [S]: where top_k drops something."""
    limits_np: BoolArray = (top_k_np > 0) & (top_k_np < vocab_size)
    return limits_np


def leading_by_sort(logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """logits [n, V], top_p [n] -> logits with all but the leading tokens at NOTHING."""
    top, ids = logits.sort(dim=-1, descending=True, stable=True)
    top = top.masked_fill(beyond_mass(top, top, top_p), NOTHING)
    return torch.empty_like(logits).scatter(1, ids, top)


def leading_of_candidates(logits: torch.Tensor, top_p: torch.Tensor, count: int) -> torch.Tensor:
    """The same, looking at the `count` most likely tokens only; lines for which these do not reach top_p are sorted.

    Waits for the device.
    """
    ids = top_tokens(logits, count)
    top = logits.gather(1, ids)
    beyond = beyond_mass(top, logits, top_p)
    kept = torch.full_like(logits, NOTHING).scatter(1, ids, top.masked_fill(beyond, NOTHING))
    unsure = (~beyond[:, -1]).nonzero().squeeze(1)
    if len(unsure):
        kept[unsure] = leading_by_sort(logits[unsure], top_p[unsure])
    return kept


def beyond_mass(top: torch.Tensor, logits: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """top [n, k]: the highest of logits [n, V], descending; top_p [n].

    -> [n, k] bool: tokens before which top_p is already reached. In float64, where the order of a sum cannot move
    the boundary by anything that matters.
    """
    highest = top[:, :1].double()
    mass, total = (top - highest).exp(), (logits - highest).exp().sum(dim=-1, keepdim=True)
    before = mass.cumsum(dim=-1) - mass
    beyond = (before >= top_p[:, None] * total) & (top_p[:, None] < 1.0)
    beyond[:, 0] = False
    return beyond

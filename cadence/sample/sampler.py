"""Chooses one token per line: the most likely one, or with noise that makes the most likely one a fair draw."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch

from cadence.core.contract.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.interface.ops import NO_IDS, DrawParams, Ops
from cadence.sample.context import SampleContext
from cadence.sample.lines import LineIndex, LinePicker
from cadence.sample.params import SamplingTable

# tokens [S] int32 (the lower id among equals), and [S] float32 that is finite where there was a choice
Choice = tuple[torch.Tensor, torch.Tensor]


class TokenSampler(Protocol):
    """Chooses tokens, at lines with drafts and without, and drafts themselves."""

    tables: list[RequestTable]  # of its own

    def beyond_draw(self, rows_np: np.ndarray) -> bool:
        """Whether lines of these rows have to go by `choose`, even if all they want is a token."""
        ...

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        """logits [S, V] as the model left them, rows [S], lengths [S]: temperature and draw, decided on the device."""
        ...

    def draw_draft(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, draft: int, ids: torch.Tensor = NO_IDS
    ) -> Choice:
        """Draft number `draft` of each row [S], from a proposer's logits [S, columns], for positions lengths [S].

        ids [columns] int32: the token id of each column, where it is not the column's number.
        """
        ...

    def choose(self, logits: torch.Tensor, ctx: SampleContext) -> Choice:
        """logits [S, V] float32, already divided by the temperature; written to."""
        ...


SamplerFactory = Callable[[Device, Ops, SamplingTable], TokenSampler]


class Sampler:
    """Drafts are verified exactly: they are drawn with the noise of the token that is chosen in their place.

    Noise is a pure function of (seed, position, token id): neither the batch nor the past enters into a draw."""

    def __init__(self, device: Device, ops: Ops, table: SamplingTable) -> None:
        self._ops = ops
        self.params = DrawParams(
            table.scalars.get("temperature"), table.scalars.get("seed"), table.scalars.get("random")
        )
        self._random_np = table.random_np
        self._lines = LinePicker(device)
        self.tables: list[RequestTable] = []

    def beyond_draw(self, rows_np: np.ndarray) -> bool:
        return False

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        return self._ops.draw(logits, rows, lengths, self.params)

    def draw_draft(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, draft: int, ids: torch.Tensor = NO_IDS
    ) -> Choice:
        return self._ops.draw(logits, rows, lengths, self.params, ids)

    def choose(self, logits: torch.Tensor, ctx: SampleContext) -> Choice:
        def draw(part: torch.Tensor, lines: LineIndex) -> torch.Tensor:
            noise = self._ops.gumbel_noise(self.params.seeds[ctx.rows[lines]], ctx.lengths[lines], part.shape[1])
            return noise.add_(part)

        random_np = self._random_np[ctx.rows_np]
        if random_np.any():
            logits = self._lines.change(logits, random_np, draw)
        best = logits.max(dim=-1)
        return best.indices.to(torch.int32), best.values

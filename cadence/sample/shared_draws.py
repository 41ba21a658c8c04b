"""Draws of ranks that have the same logits: each draws some of the lines, and all get every token."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.table import RequestTable
from cadence.device.base import Device
from cadence.kernels.interface.collectives import Collectives
from cadence.kernels.interface.ops import NO_IDS, Ops
from cadence.sample.context import SampleContext
from cadence.sample.params import SamplingTable
from cadence.sample.sampler import Choice, SamplerFactory, TokenSampler


class SharedDraws:
    """A `TokenSampler` around another. What a line gets depends on nothing but the line, so it does not matter who
    draws it. What keeps state (drafts' distributions, logits that steps have changed) every rank does itself."""

    def __init__(self, base: TokenSampler, ranks: Collectives) -> None:
        self._base = base
        self._ranks = ranks
        self.tables: list[RequestTable] = base.tables

    def beyond_draw(self, rows_np: np.ndarray) -> bool:
        return self._base.beyond_draw(rows_np)

    def draw(self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor) -> Choice:
        count, ranks = len(logits), self._ranks
        each = -(-count // ranks.size)
        if each == count:
            return self._base.draw(logits, rows, lengths)
        start = min(ranks.rank * each, count - each)
        own = slice(start, start + each)
        tokens, peaks = self._base.draw(logits[own], rows[own], lengths[own])
        return ranks.all_gather(tokens, count), ranks.all_gather(peaks, count)

    def draw_draft(
        self, logits: torch.Tensor, rows: torch.Tensor, lengths: torch.Tensor, draft: int, ids: torch.Tensor = NO_IDS
    ) -> Choice:
        return self._base.draw_draft(logits, rows, lengths, draft, ids)

    def choose(self, logits: torch.Tensor, ctx: SampleContext) -> Choice:
        return self._base.choose(logits, ctx)


def sharing(new_sampler: SamplerFactory, ranks: Collectives) -> SamplerFactory:
    """ranks: that have the same logits"""
    if ranks.size == 1:
        return new_sampler

    def shared(device: Device, ops: Ops, table: SamplingTable) -> TokenSampler:
        return SharedDraws(new_sampler(device, ops, table), ranks)

    return shared

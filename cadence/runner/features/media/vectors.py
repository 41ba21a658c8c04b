"""What a tower made of contents, and which tokens of a forward get it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from cadence.core.contract.media_work import MediaRun, MediaWork, page_entries
from cadence.core.inputs.media import VECTORS
from cadence.device.base import Device
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.media import NO_OVERLAY, MediaContent, MediaOverlay, MediaTower

TOGETHER = 4096  # vectors that are made at once, unless one content has more


class TowerVectors:
    """In pages of an encoder cache. A model that drafts may have a tower of its own, and vectors in the same pages of a
    cache of its own."""

    def __init__(self, device: Device, ops: Ops, tower: MediaTower, cache: torch.Tensor, page_size: int) -> None:
        """cache: [pages * page_size, H] in the model's dtype, [0, 0] where nothing is encoded"""
        self.tower = tower
        self.encodes = len(cache) > 0
        self._device = device
        self._ops = ops
        self.cache = cache
        self._page_size = page_size

    def encode(self, works: Sequence[MediaWork]) -> None:
        if self.encodes:
            for batch in _batches(works):
                self._encode(batch)

    def largest(self, length: int) -> MediaWork | None:
        """Into the first page, of what no tower has seen yet."""
        if not (self.encodes and self.tower.reads):
            return None
        content = self.tower.largest(length)
        pages = [0] * -(-content.length // self._page_size)
        return MediaWork(content.kind, content.values.cpu().numpy(), content.grid, content.length, pages)

    def overlay(self, batch: StepBatch, runs: Sequence[MediaRun]) -> MediaOverlay:
        """Rows of a run may be anywhere in the forward, or in none of its parts."""
        if not self.encodes or not runs:
            return NO_OVERLAY
        num_tokens = batch.ids.shape[0]
        entries_np = np.concatenate([page_entries(run.pages, self._page_size, run.first, run.count) for run in runs])
        sources = torch.full((num_tokens + 1,), -1, dtype=torch.int64, device=self.cache.device)
        sources[token_places(self._device, batch, runs, num_tokens)] = self._device.upload(entries_np)
        return MediaOverlay(sources[:num_tokens], self.cache)

    def _encode(self, works: Sequence[MediaWork]) -> None:
        if works[0].kind == VECTORS:
            made = torch.cat([self._device.upload(work.values_np) for work in works])
            if made.shape[1] != self.cache.shape[1]:  # the target's, and nothing to a model of another width
                made = made.new_zeros((len(made), self.cache.shape[1]))
        else:
            contents = [
                MediaContent(work.kind, self._device.upload(work.values_np), work.grid, work.length) for work in works
            ]
            made = self.tower.encode(contents, self._ops)
        where_np = np.concatenate([page_entries(work.pages, self._page_size, 0, work.length) for work in works])
        self.cache[self._device.upload(where_np)] = made.to(self.cache.dtype)


def runs_of_model(runs: Sequence[MediaRun]) -> list[MediaRun]:
    """Of a model that computes the tokens of the plan."""
    return [replace(run, count=run.count - run.beyond) for run in runs if run.count > run.beyond]


def runs_of_head(runs: Sequence[MediaRun]) -> list[MediaRun]:
    """Of a head, which computes in the place of each token of the plan the one after it."""
    at_first = [replace(run, first=run.first + 1, count=run.count - 1) for run in runs if run.at == 0 and run.count > 1]
    return [*at_first, *(replace(run, at=run.at - 1) for run in runs if run.at)]


def token_places(device: Device, batch: StepBatch, runs: Sequence[MediaRun], nowhere: int) -> torch.Tensor:
    """-> [all tokens of the runs] int64: their numbers in the batch; `nowhere` of a row that is not in it"""
    rows_np = np.repeat([run.row for run in runs], [run.count for run in runs])
    after_np = np.concatenate([run.at + np.arange(run.count) for run in runs])
    rows = device.upload(rows_np.astype(np.int32))
    same = rows[:, None] == batch.rows[None, :]
    first = batch.query_start[:-1][same.to(torch.uint8).argmax(dim=1)].to(torch.int64)
    return torch.where(same.any(dim=1), first + device.upload(after_np.astype(np.int64)), nowhere)


def _batches(works: Sequence[MediaWork]) -> Iterator[list[MediaWork]]:
    """In order, as many of one kind at a time as are no more than TOGETHER vectors. What comes of a content does not
    depend on the others."""
    batch: list[MediaWork] = []
    for work in works:
        if batch and (batch[0].kind != work.kind or sum(each.length for each in batch) + work.length > TOGETHER):
            yield batch
            batch = []
        batch.append(work)
    if batch:
        yield batch

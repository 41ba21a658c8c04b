"""Contents of prompts become vectors, which take the place of tokens in a plan's first forward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch

from cadence.core.contract.media_work import MediaRun, MediaStep, MediaWork, page_entries
from cadence.core.media import MEDIA, VECTORS
from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import AttentionBatch, Sees
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.media import MediaContent, MediaOverlay, MediaTower, SeenSpans
from cadence.models.interface.model import ForwardContext
from cadence.runner.feature import DeviceFeature
from cadence.runner.layout import BatchLayout

TOGETHER = 4096  # vectors that are made at once, unless one content has more


class DeviceMedia(DeviceFeature):
    """Every rank, and the first stage, encodes by itself what the plan says; later stages know which tokens see each
    other."""

    name = MEDIA

    def __init__(
        self, device: Device, ops: Ops, tower: MediaTower, cache: torch.Tensor, page_size: int, longest: int
    ) -> None:
        """cache: [pages * page_size, H] in the model's dtype, [0, 0] on stages that begin with another's. longest: most
        vectors of a content"""
        self.inputs = [self]
        self._device = device
        self._ops = ops
        self._tower = tower
        self._cache = cache
        self._page_size = page_size
        self._longest = longest
        self._runs: Sequence[MediaRun] = ()

    def apply(self, payload: MediaStep) -> None:
        if self._encodes:
            for works in _batches(payload.works):
                self._encode(works)
        self._runs = payload.runs

    def mark(self, layout: BatchLayout, payload: MediaStep) -> BatchLayout:
        return replace(layout, marks=(*layout.marks, MEDIA)) if payload.runs else layout

    def joins(self, layout: BatchLayout) -> bool:
        return MEDIA in layout.marks

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Never of a recorded forward."""
        return replace(ctx, overlay=self._overlay(batch), spans=self._spans(ctx.batch, batch))

    def largest(self) -> MediaStep | None:
        """Into the first page, of what no tower has seen yet."""
        if not (self._encodes and self._tower.reads):
            return None
        content = self._tower.largest(self._longest)
        pages = [0] * -(-content.length // self._page_size)
        values_np = content.values.cpu().numpy()
        return MediaStep([MediaWork(content.kind, values_np, content.grid, content.length, pages)])

    @property
    def _encodes(self) -> bool:
        return len(self._cache) > 0

    def _encode(self, works: Sequence[MediaWork]) -> None:
        if works[0].kind == VECTORS:
            made = torch.cat([self._device.upload(work.values_np) for work in works])
        else:
            contents = [
                MediaContent(work.kind, self._device.upload(work.values_np), work.grid, work.length) for work in works
            ]
            made = self._tower.encode(contents, self._ops)
        where_np = np.concatenate([page_entries(work.pages, self._page_size, 0, work.length) for work in works])
        self._cache[self._device.upload(where_np)] = made.to(self._cache.dtype)

    def _overlay(self, batch: StepBatch) -> MediaOverlay:
        """Rows of a run may be anywhere in the forward, or in none of its parts."""
        if not self._encodes:
            return MediaOverlay(torch.empty(0, dtype=torch.int64), self._cache)
        num_tokens = batch.ids.shape[0]
        entries_np = np.concatenate(
            [page_entries(run.pages, self._page_size, run.first, run.count) for run in self._runs]
        )
        sources = torch.full((num_tokens + 1,), -1, dtype=torch.int64, device=self._cache.device)
        sources[self._tokens(batch, self._runs, num_tokens)] = self._device.upload(entries_np)
        return MediaOverlay(sources[:num_tokens], self._cache)

    def _tokens(self, batch: StepBatch, runs: Sequence[MediaRun], nowhere: int) -> torch.Tensor:
        """-> [all tokens of the runs] int64: their numbers in the batch; `nowhere` of a row that is not in it"""
        rows_np = np.repeat([run.row for run in runs], [run.count for run in runs])
        after_np = np.concatenate([run.at + np.arange(run.count) for run in runs])
        rows = self._device.upload(rows_np.astype(np.int32))
        same = rows[:, None] == batch.rows[None, :]
        first = batch.query_start[:-1][same.to(torch.uint8).argmax(dim=1)].to(torch.int64)
        return torch.where(same.any(dim=1), first + self._device.upload(after_np.astype(np.int64)), nowhere)

    def _spans(self, own: AttentionBatch, batch: StepBatch) -> SeenSpans:
        runs = [run for run in self._runs if run.both_ways]
        if not runs:
            return SeenSpans(torch.empty(0, dtype=torch.int64), ())
        upload = self._device.upload
        tokens = self._tokens(batch, runs, 0)
        counts_np = np.array([run.count for run in runs], dtype=np.int32)
        start_np = np.concatenate([[0], np.cumsum(counts_np)]).astype(np.int32)
        last = upload(start_np[1:].astype(np.int64) - 1)
        lengths = (batch.positions[tokens[last]] + 1).to(torch.int32)
        spans = AttentionBatch(
            rows=upload(np.array([run.row for run in runs], dtype=np.int32)),
            query_start=upload(start_np),
            seq_lens=lengths,
            block_tables=own.block_tables,
            slots=(),
            num_single=0,
            max_query_len=int(counts_np.max()),
            sees=Sees.BOTH_WAYS,
        )
        return SeenSpans(tokens, (spans,))


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

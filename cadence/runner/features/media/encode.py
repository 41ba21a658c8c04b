"""Contents of prompts become vectors, which take the place of tokens in a plan's first forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from cadence.core.contract.media_work import MediaRun, MediaStep
from cadence.core.inputs.media import MEDIA
from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import AttentionBatch, Sees
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.media import NO_SPANS, SeenSpans
from cadence.models.interface.model import ForwardContext
from cadence.runner.feature import DeviceFeature
from cadence.runner.features.media.vectors import TowerVectors, runs_of_head, runs_of_model, token_places
from cadence.runner.layout import BatchLayout


class DeviceMedia(DeviceFeature):
    """Every rank, and the first stage, encodes by itself what the plan says; later stages know which tokens see each
    other. A model that drafts sees the same, `drafted`."""

    name = MEDIA

    def __init__(self, device: Device, vectors: TowerVectors, drafted: TowerVectors, longest: int) -> None:
        """drafted: of the model that drafts; the same where it takes the target's. longest: most vectors of a
        content"""
        self.inputs = [self]
        self.drafted = drafted
        self._device = device
        self._vectors = vectors
        self._encoders = [vectors] if drafted is vectors else [vectors, drafted]
        self._longest = longest
        self._runs: Sequence[MediaRun] = ()

    def memory(self) -> list[torch.Tensor]:
        return [vectors.cache for vectors in self._encoders]

    def apply(self, payload: MediaStep) -> None:
        for vectors in self._encoders:
            vectors.encode(payload.works)
        self._runs = payload.runs

    def mark(self, layout: BatchLayout, payload: MediaStep) -> BatchLayout:
        return replace(layout, marks=(*layout.marks, MEDIA)) if payload.runs else layout

    def joins(self, layout: BatchLayout) -> bool:
        return MEDIA in layout.marks

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Never of a recorded forward."""
        return self._extended(ctx, batch, self._vectors)

    def extend_drafter(self, ctx: ForwardContext, batch: StepBatch, ahead: int) -> ForwardContext:
        """Of the forward by which one that drafts computes the tokens of this plan, or those after them. What a head
        was trained with is causal."""
        if ahead:
            return replace(ctx, overlay=self.drafted.overlay(batch, runs_of_head(self._runs)))
        return self._extended(ctx, batch, self.drafted)

    def largest(self) -> MediaStep | None:
        works = [work for vectors in self._encoders if (work := vectors.largest(self._longest)) is not None]
        return MediaStep(works[:1]) if works else None

    def _extended(self, ctx: ForwardContext, batch: StepBatch, vectors: TowerVectors) -> ForwardContext:
        runs = runs_of_model(self._runs)
        return replace(ctx, overlay=vectors.overlay(batch, runs), spans=self._spans(ctx.batch, batch, runs))

    def _spans(self, own: AttentionBatch, batch: StepBatch, runs: Sequence[MediaRun]) -> SeenSpans:
        runs = [run for run in runs if run.both_ways]
        if not runs:
            return NO_SPANS
        upload = self._device.upload
        tokens = token_places(self._device, batch, runs, 0)
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


class DraftedMedia:
    """An `InputHook`, of a model that drafts: its first forward after one of the target that had contents."""

    name = MEDIA

    def __init__(self, media: DeviceMedia, ahead: int) -> None:
        """ahead: 1 of a head"""
        self._media = media
        self._ahead = ahead

    def joins(self, layout: BatchLayout) -> bool:
        return self._media.joins(layout)

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        return self._media.extend_drafter(ctx, batch, self._ahead)

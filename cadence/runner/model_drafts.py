"""Drafts by a model: behind each forward of the target, what the drafter lacks of the rows, and then token after token.
One loop for smaller models and for heads, on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cadence.device.base import Device
from cadence.kernels.interface.ops import NO_IDS, Ops
from cadence.kernels.interface.row_ops import DraftBatch, DraftState, RowState, StepBatch
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.buffers import StepBuffers
from cadence.runner.drafting import BeginsWith, States
from cadence.runner.layout import MODEL_RUN, BatchLayout
from cadence.runner.shapes import Shapes, StepShape, Until
from cadence.sample.pipeline import SamplePipeline
from cadence.speculate.draft_model import DraftModel


@dataclass(frozen=True, slots=True)
class ModelDraftsParts:
    """What drafts are made with, put together by `setup`."""

    device: Device
    ops: Ops
    draft: DraftModel
    drafted: DraftState
    sampler: SamplePipeline
    shapes: Shapes
    quiet_row: int


class ModelDrafts:
    """Implements `Drafting`."""

    by_model = True

    def __init__(self, parts: ModelDraftsParts) -> None:
        self._parts = parts
        self._drafter = drafter = parts.draft.drafter
        self.begins_with = BeginsWith(drafter.begins_with, drafter.aux_layers)
        shapes, device, num_groups = parts.shapes, parts.device, len(parts.drafted.tables)
        self._first = StepBuffers(device, shapes, num_groups, parts.quiet_row, spare=MODEL_RUN * shapes.most_rows)
        self._next = StepBuffers(device, shapes, num_groups, parts.quiet_row)
        self._each = torch.arange(shapes.most_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._at_first = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
        vocabulary = drafter.vocabulary
        self._ids = NO_IDS if vocabulary.same else vocabulary.target_ids.int()
        self._shape = StepShape(0, 0, 0, 0, 0, Until.KEYS)  # of draft 0, as it was named last
        self._caches: Sequence[LayerCache] = ()

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = self._parts.draft.caches(caches)

    def name(self, layout: BatchLayout, shape: StepShape) -> None:
        self._shape = self._first_shape(layout, shape)
        if self._shape.num_tokens:
            self._first.name(self._layout(layout), self._shape)

    def propose(self, state: RowState, batch: StepBatch, states: States) -> None:
        drafter, ops, shape = self._drafter, self._parts.ops, self._shape
        if not shape.num_tokens:
            return
        drafts = self._batch(shape)
        first, following = drafts.first, drafts.next
        ops.rows.begin_drafts(state, self._parts.drafted, drafts)
        ctx = self._context(first, self._wanted(drafts, shape.depth))
        hidden = drafter.combine(states, ctx)
        for_logits, hidden = drafter.forward(ModelInputs(first.ids, first.positions), hidden, ctx, 0)
        for draft in range(shape.depth if shape.num_lines else 0):
            last = draft + 1 == shape.depth
            logits = drafter.logits(for_logits, ctx, draft)
            chosen = self._parts.sampler.draw(logits, following.line_rows, following.line_lengths, self._ids)
            ops.rows.take_draft(state, self._parts.drafted, drafts, chosen, draft, last)
            if not last:
                ctx = self._context(following, EVERY_TOKEN)
                inputs = ModelInputs(following.ids, following.positions)
                for_logits, hidden = drafter.forward(inputs, hidden, ctx, draft + 1)

    def _layout(self, layout: BatchLayout) -> BatchLayout:
        return layout.of_head() if self._drafter.ahead else layout.of_model()

    def _first_shape(self, layout: BatchLayout, shape: StepShape) -> StepShape:
        """Of draft 0 behind a forward of `shape`; no tokens where a model has nothing to do: it catches up when it is
        asked for drafts again. A head can not: the states it begins with are gone by then."""
        most = self._drafter.most_drafts
        depth = min(shape.depth, most) if most else shape.depth
        if shape.is_decode and not layout.behind:
            each = shape.num_tokens if self._drafter.ahead else MODEL_RUN * shape.num_rows
            tokens = each if depth or self._drafter.ahead else 0
            longest = shape.max_query_len if self._drafter.ahead else MODEL_RUN
            return StepShape(shape.num_rows, tokens, shape.num_rows, 0, longest, Until.TOKENS, depth=depth)
        own = self._layout(layout)
        return StepShape(own.num_rows, own.num_tokens, own.num_lines, 0, own.max_query_len, Until.TOKENS, depth=depth)

    def _batch(self, shape: StepShape) -> DraftBatch:
        first, num = self._first.batch(shape), shape.num_lines
        buffers = self._next.batch(StepShape(num, num, num, num, 1, Until.TOKENS))
        following = StepBatch(
            rows=first.line_rows,
            query_start=self._each[: num + 1],
            line_start=self._each[: num + 1],
            ids=buffers.ids,
            positions=buffers.positions,
            slots=buffers.slots,
            seq_lens=buffers.seq_lens,
            line_at=buffers.line_at,
            line_rows=first.line_rows,
            line_lengths=first.line_lengths,
            num_single=num,
            max_query_len=1,
        )
        return DraftBatch(first, following)

    def _wanted(self, batch: DraftBatch, depth: int) -> Wanted:
        """Whose states go on behind the keys: those that are drafted behind; one, where none is: no op is made for
        none."""
        first, following = batch.first, batch.next
        if not depth or not first.line_rows.shape[0]:
            return LastTokens(self._at_first, first.rows[:1], first.seq_lens[:1], self._each[:2])
        if first.one_each:
            return EVERY_TOKEN
        return LastTokens(first.line_at, first.line_rows, following.seq_lens, following.query_start)

    def _context(self, batch: StepBatch, wanted: Wanted) -> ForwardContext:
        return ForwardContext(self._parts.ops, batch.attention(self._parts.drafted.tables), self._caches, wanted)

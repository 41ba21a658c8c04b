"""Drafts by a model: after each forward of the target, what the proposer lacks of the rows, and then token after token.
One loop for smaller models and for heads, on every device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from cadence.device.base import Device
from cadence.kernels.interface.ops import NO_IDS, Ops
from cadence.kernels.interface.row_ops import DraftBatch, DraftState, RowState, StepBatch
from cadence.models.interface.model import ForwardContext, LayerCache, ModelInputs
from cadence.models.interface.model_proposer import DraftStates
from cadence.models.interface.row_states import RowStates
from cadence.models.interface.wanted import EVERY_TOKEN, LastTokens, Wanted
from cadence.runner.after_sample import BeginsWith, States
from cadence.runner.buffers import StepBuffers
from cadence.runner.feature import InputHook
from cadence.runner.features.drafts.drafted_states import DraftedStates
from cadence.runner.features.drafts.waiting_positions import WaitingPositions
from cadence.runner.graphs import StepGraphs, StepOutputs
from cadence.runner.layout import MODEL_RUN, BatchLayout
from cadence.runner.shapes import ExactShapes, Shapes, StepShape, Until, decode_shape, shape_of
from cadence.sample.pipeline import SamplePipeline
from cadence.speculate.draft_model import DraftModel

_NOTHING = decode_shape(0, 1, True)


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
    rows: RowState
    waiting: WaitingPositions
    inputs: Sequence[InputHook]  # of every forward of the draft model
    first_inputs: Sequence[InputHook]  # of that of draft 0, after forwards that the same hooks of the target join
    states: DraftedStates


def most_drafted_tokens(shapes: Shapes, room: int) -> int:
    """Of a forward of a model that drafts: what it lacks comes on top of a full step. room: positions of a row that may
    wait"""
    return shapes.most_tokens + MODEL_RUN * shapes.most_rows + max(shapes.most_tokens, room)


class ModelDrafts:
    """An `AfterSample`."""

    by_model = True

    def __init__(self, parts: ModelDraftsParts) -> None:
        self._parts = parts
        self._proposer = proposer = parts.draft.proposer
        self.begins_with = BeginsWith(proposer.begins_with, proposer.aux_layers)
        shapes, device, num_groups = parts.shapes, parts.device, len(parts.drafted.tables)
        self._most_tokens = most_drafted_tokens(shapes, parts.waiting.room)
        spare = self._most_tokens - shapes.most_tokens
        self._first = StepBuffers(device, shapes, num_groups, parts.quiet_row, spare)
        self._keeps = False  # what a head needs, in place of drafting, of rows of that forward
        self._joined: Sequence[InputHook] = ()  # of the forward that was named last
        one_each = ExactShapes(shapes.most_rows, shapes.most_rows, recorded=False)
        self._next = StepBuffers(device, one_each, num_groups, parts.quiet_row)
        self._each = torch.arange(shapes.most_rows + 1, dtype=torch.int32, device=device.torch_device)
        self._at_first = torch.zeros(1, dtype=torch.int64, device=device.torch_device)
        vocabulary = proposer.vocabulary
        self._ids = NO_IDS if vocabulary.same else vocabulary.target_ids.int()
        self._states = parts.states
        self._remembers = parts.states.remembers or bool(proposer.kv_layers())
        self._waits = parts.draft.waits
        self._graphs = StepGraphs(device)
        self._shape = _NOTHING  # of draft 0, as it was named last
        self._caches: Sequence[LayerCache] = ()

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        self._caches = self._parts.draft.caches(caches)
        self._graphs.forget()

    def name(self, layout: BatchLayout, shape: StepShape) -> int:
        depth = min(shape.depth, self._proposer.most_drafts or shape.depth)
        num_waiting = self._num_waiting(layout, depth)
        overdue, room = self._parts.waiting.begin(layout, num_waiting, shape.num_forwards)
        self._joined, self._keeps = (), self._may_wait(layout, depth)
        if overdue.num_rows:
            for piece in overdue.pieces(self._most_tokens):
                self._make_up(piece)
        self._joined = [hook for hook in self._parts.first_inputs if hook.joins(layout)]
        self._shape = _NOTHING
        if num_waiting < layout.num_rows or depth or not self._waits:
            self._name_first(layout, shape, depth, num_waiting)
        return room

    def repeated(self, layout: BatchLayout, depth: int, num_forwards: int) -> None:
        self._parts.waiting.add_forwards(layout, self._num_waiting(layout, depth), num_forwards)

    def propose(self, state: RowState, batch: StepBatch, states: States) -> None:
        proposer, ops, shape = self._proposer, self._parts.ops, self._shape
        if self._keeps:
            self._parts.waiting.keep(ops, batch, states)
            states = tuple(each[batch.num_single :] for each in states)
        if not shape.num_rows:
            return
        drafts = self._batch(shape)
        following = drafts.next
        ops.rows.begin_drafts(state, self._parts.drafted, drafts)
        if not shape.num_tokens or not (shape.depth or self._remembers):
            return
        (for_logits, hidden), ctx = self._begin(drafts, states, shape.depth)
        for draft in range(shape.depth if shape.num_lines else 0):
            last = draft + 1 == shape.depth
            logits = proposer.logits(for_logits, ctx, draft)
            places = (following.line_rows, following.line_lengths)
            chosen = self._parts.sampler.draw_draft(logits, *places, draft, self._ids)
            ops.rows.take_draft(state, self._parts.drafted, drafts, chosen, draft, last)
            if not last:
                ctx = self._context(following, EVERY_TOKEN, self._states.following(drafts, draft + 1))
                inputs = ModelInputs(following.ids, following.positions)
                for_logits, hidden = proposer.forward(inputs, hidden, ctx, draft + 1)
        self._states.end(self._parts.drafted, drafts)

    def _begin(self, drafts: DraftBatch, states: States, depth: int) -> tuple[DraftStates, ForwardContext]:
        """The forward of draft 0, after `begin_drafts` -> its states and its context"""
        first = drafts.first
        own = self._states.first(self._parts.drafted, drafts)
        ctx = self._context(first, self._wanted(drafts, depth), own)
        for hook in self._joined:
            ctx = hook.extend(ctx, first)
        hidden = self._proposer.combine(states, ctx)
        return self._proposer.forward(ModelInputs(first.ids, first.positions), hidden, ctx, 0), ctx

    def _make_up(self, overdue: BatchLayout) -> None:
        """Keys of positions that waited, from what was kept of them."""
        parts, run = self._parts, self._parts.waiting.room
        shape = parts.shapes.keys_shape(overdue, run)
        if shape.num_tokens > overdue.num_tokens:
            overdue = overdue.evened(shape.num_rows, run, parts.quiet_row)
        self._first.name(overdue, shape)
        self._graphs.run(shape, partial(self._compute_keys, shape))

    def _compute_keys(self, shape: StepShape) -> StepOutputs:
        """It may be recorded."""
        parts, drafts = self._parts, self._batch(shape)
        parts.ops.rows.begin_drafts(parts.rows, parts.drafted, drafts)
        states = parts.waiting.kept(parts.ops, drafts.first)
        (for_logits, hidden), _ = self._begin(drafts, states, 0)
        return StepOutputs(hidden, for_logits, states)

    def _num_waiting(self, layout: BatchLayout, depth: int) -> int:
        """Where no drafts are asked for, a head computes no row of one token, but keeps the target's states of it ->
        how many of the leading rows wait"""
        return layout.num_single if self._may_wait(layout, depth) else 0

    def _may_wait(self, layout: BatchLayout, depth: int) -> bool:
        """What the plan says of this forward alone is not there later."""
        return self._waits and not depth and not layout.marks

    def _name_first(self, layout: BatchLayout, shape: StepShape, depth: int, num_waiting: int) -> None:
        """Draft 0 is made for all rows but the first `num_waiting`."""
        own = self._layout(layout, shape.is_decode and not depth and not layout.marks, num_waiting)
        even = shape.is_decode and not layout.catch_up and not layout.marks
        self._shape = self._decode_shape(shape, depth) if even else shape_of(own, Until.TOKENS, depth)
        self._first.name(own, self._shape)

    def _layout(self, layout: BatchLayout, pauses: bool, num_waiting: int) -> BatchLayout:
        """Of draft 0. Where no drafts are asked for, a model pauses, and catches up when they are."""
        if self._proposer.ahead:
            return layout.of_head(num_waiting)
        return layout.empty() if pauses else layout.of_model(0 if self._states.remembers else MODEL_RUN)

    def _decode_shape(self, shape: StepShape, depth: int) -> StepShape:
        """Of draft 0, after a forward of `shape` in which every row decodes; padding included."""
        run = shape.max_query_len if self._proposer.ahead or self._states.remembers else MODEL_RUN
        tokens, lines = shape.num_tokens if self._proposer.ahead else run * shape.num_rows, shape.num_rows
        if not (self._proposer.ahead or depth):
            run, tokens, lines = 1, 0, 0
        return StepShape(
            num_rows=shape.num_rows,
            num_tokens=tokens,
            num_lines=lines,
            num_single=0,
            max_query_len=run,
            until=Until.TOKENS,
            depth=depth,
        )

    def _batch(self, shape: StepShape) -> DraftBatch:
        first, num = self._first.batch(shape), shape.num_lines
        buffers = self._next.batch(decode_shape(num, 1, True))
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
        """Whose states go on after the keys: those that drafts follow; one, where none does: no op is made for
        none."""
        first, following = batch.first, batch.next
        if not depth or not first.line_rows.shape[0]:
            return LastTokens(self._at_first, first.rows[:1], first.seq_lens[:1], self._each[:2])
        if first.one_each:
            return EVERY_TOKEN
        return LastTokens(first.line_at, first.line_rows, following.seq_lens, following.query_start)

    def _context(self, batch: StepBatch, wanted: Wanted, states: RowStates) -> ForwardContext:
        attention = batch.attention(self._parts.drafted.tables)
        ctx = ForwardContext(self._parts.ops, attention, self._caches, wanted, states=states)
        for hook in self._parts.inputs:
            ctx = hook.extend(ctx, batch)
        return ctx

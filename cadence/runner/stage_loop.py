"""The forwards of a stage that is not the last: it computes its layers, hands the stream on, and hears which tokens
were chosen when a row needs them; until then it goes on with other rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import IntArray, StepPlan, StepResult
from cadence.kernels.interface.links import StageLinks
from cadence.kernels.interface.row_ops import RowOps, RowState, StepBatch
from cadence.models.interface.model import ModelInputs
from cadence.models.interface.wanted import EVERY_TOKEN
from cadence.runner.buffers import StepBuffers
from cadence.runner.graphs import StepOutputs
from cadence.runner.layout import BatchLayout
from cadence.runner.parts import Part
from cadence.runner.shapes import StepShape, Until, shape_of
from cadence.runner.step_loop import ONE, Computed, ForwardCount, HiddenHook, LoopParts, StepLoop, until_of
from cadence.sample.sampler import Choice

_NO_TOKENS_NP: IntArray = np.zeros((0, 0, 1), dtype=np.int32)
_NO_DRAFTS_NP: IntArray = np.zeros((0, 0), dtype=np.int32)


class StagePart:
    """One forward, of which another stage has the tokens."""

    num_forwards = 1

    def result(self, step_id: int) -> StepResult:
        return StepResult(step_id, _NO_TOKENS_NP, _NO_DRAFTS_NP)


class EarlierStages:
    """Those before the last, which tells them."""

    def __init__(self, links: StageLinks, ops: RowOps, most_drafts: int) -> None:
        self._links = links
        self._ops = ops
        self._most_drafts = most_drafts

    def tell_chosen(self, chosen: Choice) -> None:
        if len(chosen[0]):
            for values in chosen:
                self._links.tell(values)

    def tell_drafts(self, state: RowState, batch: StepBatch) -> None:
        if self._most_drafts and len(batch.line_at):
            self._links.tell(self._ops.drafts(state, batch, self._most_drafts))


@dataclass(frozen=True, slots=True)
class Unheard:
    """A forward whose rows with lines lack what was chosen there."""

    layout: BatchLayout  # of these rows
    at_np: IntArray  # [S] their places among all rows of the forward
    num_lines: int  # padding included
    num_rows: int


class StageLoop(StepLoop):
    """Rows are here as the last stage has them, but for tokens that were not needed yet."""

    def __init__(self, parts: LoopParts, links: StageLinks) -> None:
        super().__init__(parts)
        self._links = links
        self._unheard: deque[Unheard] = deque()  # in the order of forwards
        device, shapes = parts.device, parts.shapes
        self._late = StepBuffers(device, shapes, len(parts.blocks.tables), parts.requests.quiet_row)
        self._tokens_heard, self._out = (
            torch.zeros(shapes.most_lines, dtype=torch.int32, device=device.torch_device) for _ in range(2)
        )
        self._peaks_heard = torch.zeros(shapes.most_lines, device=device.torch_device)

    def await_rows_of(self, plan: StepPlan) -> None:
        self.await_rows([*plan.ended, *(new.row for new in plan.begun)])

    @torch.inference_mode()
    def await_rows(self, rows: Sequence[int]) -> None:
        self._settle(np.array(rows, dtype=np.int32))

    def _settle(self, rows_np: IntArray) -> None:
        """Waits for what forwards before have brought these rows."""
        while any(np.isin(unheard.layout.rows_np, rows_np).any() for unheard in self._unheard):
            self._hear(self._unheard.popleft())

    @torch.inference_mode()
    def launch(
        self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int, count: ForwardCount = ONE
    ) -> Part:
        self._forward(layout, draws, hooks, depth)
        return StagePart()

    @torch.inference_mode()
    def compute(self, layout: BatchLayout, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        self._forward(layout, False, hooks, depth)
        return Computed(layout)

    def choose(self, computed: Computed, waiting: Sequence[int] = ()) -> Part:
        return StagePart()

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> None:
        super().prepare(shape)
        if shape.until is Until.TOKENS:
            self._hear_lines(shape.num_lines)
            self._hear_drafts(shape.num_rows)

    def _forward(self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int) -> None:
        """In the shape in which the last stage computes it."""
        self._settle(layout.rows_np)
        layout, until = self._parts.driver.trim_missing_drafts(layout), until_of(layout, draws, hooks)
        shape = self._parts.shapes.shape(layout, until, 1, self._depth(depth))
        self._name(layout, shape, depth)
        self._run(shape)
        for hook in hooks:
            hook.pass_over(self._view(layout))
        going, pausing = layout.apart()
        if going.num_rows:
            self._commit_late(going, self._out[:0], self._peaks_heard[:0])
        if pausing.num_rows:
            told = shape if shape.until is Until.TOKENS else layout
            at_np = np.flatnonzero(np.diff(layout.line_start_np))
            self._unheard.append(Unheard(pausing, at_np, told.num_lines, told.num_rows))

    def _compute(self, shape: StepShape) -> StepOutputs:
        parts, batch = self._parts, self._buffers.batch(shape)
        ctx = self._context(batch, EVERY_TOKEN)
        parts.ops.rows.gather(parts.requests.state, parts.blocks.tables, parts.block_size, batch)
        ctx = self._with_inputs(ctx, batch, shape.inputs)
        hidden = parts.model.forward(ModelInputs(batch.ids, batch.positions), ctx)
        return StepOutputs(hidden, self._no_logits)

    def _hear(self, unheard: Unheard) -> None:
        lines, requests = unheard.layout.num_lines, self._parts.requests
        tokens, peaks = self._hear_lines(unheard.num_lines)
        self._commit_late(unheard.layout, tokens[:lines], peaks[:lines])
        if self._parts.most_drafts:
            drafts = self._hear_drafts(unheard.num_rows)[unheard.at_np]
            requests.put_drafts(self._parts.device.upload(unheard.layout.rows_np).long(), drafts[:, 1:], drafts[:, 0])

    def _hear_lines(self, count: int) -> Choice:
        tokens, peaks = self._tokens_heard[:count], self._peaks_heard[:count]
        self._links.hear(tokens)
        self._links.hear(peaks)
        return tokens, peaks

    def _hear_drafts(self, num_rows: int) -> torch.Tensor:
        """[R, 1 + most]: how many, and these"""
        heard = torch.empty((num_rows, 1 + self._parts.most_drafts), dtype=torch.int32, device=self._out.device)
        if self._parts.most_drafts:
            self._links.hear(heard)
        return heard

    def _commit_late(self, layout: BatchLayout, tokens: torch.Tensor, peaks: torch.Tensor) -> None:
        """The rows have gone nowhere since: what is gathered of them is what the forward computed."""
        parts, batch = self._parts, self._late.named(layout, shape_of(layout, Until.TOKENS))
        parts.ops.rows.gather(parts.requests.state, parts.blocks.tables, parts.block_size, batch)
        parts.ops.rows.commit(parts.requests.state, batch, tokens, peaks, self._out[: layout.num_lines])

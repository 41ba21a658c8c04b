"""The forwards of a stage that is not the last: it computes its layers, hands the stream on, and receives which tokens
were chosen when a row needs them; until then it goes on with other rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.contract.step import IntArray, StepPlan, StepResult
from cadence.kernels.interface.links import StageLinks
from cadence.models.interface.wanted import EVERY_TOKEN
from cadence.runner.driver import ForwardDriver
from cadence.runner.feature import HiddenHook
from cadence.runner.forward_pass import ForwardPass
from cadence.runner.graphs import StepOutputs
from cadence.runner.layout import BatchLayout
from cadence.runner.loop import ONE, Computed, ForwardCount, until_of
from cadence.runner.parts import Part
from cadence.runner.shapes import StepShape, Until, WantedShapes, shape_of
from cadence.sample.sampler import Choice

_NO_TOKENS_NP: IntArray = np.zeros((0, 0, 1), dtype=np.int32)
_NO_DRAFTS_NP: IntArray = np.zeros((0, 0), dtype=np.int32)


class StagePart:
    """One forward, of which another stage has the tokens."""

    num_forwards = 1

    def result(self, step_id: int) -> StepResult:
        return StepResult(step_id, _NO_TOKENS_NP, _NO_DRAFTS_NP)


@dataclass(frozen=True, slots=True)
class PendingForward:
    """One whose rows with lines lack what was chosen there."""

    layout: BatchLayout  # of these rows
    at_np: IntArray  # [S] their places among all rows of the forward
    num_lines: int  # padding included
    num_rows: int


class StageLoop:
    """Rows are here as the last stage has them, but for tokens that were not needed yet; see `ForwardLoop`."""

    def __init__(self, forward: ForwardPass, driver: ForwardDriver, links: StageLinks, most_drafts: int) -> None:
        """most_drafts: that are proposed for a row and forward"""
        parts = forward.parts
        self._forward = forward
        self._parts = parts
        self._driver = driver
        self._links = links
        self._most_drafts = most_drafts
        self._pending: deque[PendingForward] = deque()  # in the order of forwards
        self._late = parts.new_buffers()
        most_lines, device = parts.shapes.most_lines, parts.device.torch_device
        self._received, self._out = (torch.zeros(most_lines, dtype=torch.int32, device=device) for _ in range(2))
        self._received_peaks = torch.zeros(most_lines, device=device)

    def await_rows_of(self, plan: StepPlan) -> None:
        self.await_rows([*plan.ended, *(new.row for new in plan.begun)])

    @torch.inference_mode()
    def await_rows(self, rows: Sequence[int]) -> None:
        self._settle(np.array(rows, dtype=np.int32))

    def wanted(self) -> WantedShapes:
        return self._parts.shapes.wanted()

    @torch.inference_mode()
    def prepare(self, shape: StepShape) -> None:
        self._forward.name_padding(shape)
        self._forward.run(shape, self._compute)
        if shape.until is Until.TOKENS:
            self._receive_lines(shape.num_lines)
            self._receive_drafts(shape.num_rows)

    @torch.inference_mode()
    def launch(
        self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int, count: ForwardCount = ONE
    ) -> Part:
        self._launch_one(layout, draws, hooks, depth)
        return StagePart()

    @torch.inference_mode()
    def compute(self, layout: BatchLayout, hooks: Sequence[HiddenHook], depth: int) -> Computed:
        self._launch_one(layout, False, hooks, depth)
        return Computed(layout)

    def choose(self, computed: Computed, waiting: Sequence[int] = ()) -> Part:
        return StagePart()

    def _launch_one(self, layout: BatchLayout, draws: bool, hooks: Sequence[HiddenHook], depth: int) -> None:
        """In the shape in which the last stage computes it."""
        self._settle(layout.rows_np)
        layout, until = self._driver.trim_missing_drafts(layout), until_of(layout, draws, hooks)
        shape = self._forward.shape(layout, until, 1, depth)
        self._forward.name(layout, shape, depth)
        self._forward.run(shape, self._compute)
        for hook in hooks:
            hook.pass_over(self._forward.prompt_slice(layout))
        going, pausing = layout.apart()
        if going.num_rows:
            self._commit_late(going, self._out[:0], self._received_peaks[:0])
        if pausing.num_rows:
            sent = shape if shape.until is Until.TOKENS else layout
            at_np = np.flatnonzero(np.diff(layout.line_start_np))
            self._pending.append(
                PendingForward(layout=pausing, at_np=at_np, num_lines=sent.num_lines, num_rows=sent.num_rows)
            )

    def _compute(self, shape: StepShape) -> StepOutputs:
        """It may be recorded."""
        forward, batch = self._forward, self._forward.batch(shape)
        ctx = forward.context(batch, EVERY_TOKEN)
        forward.gather(batch)
        ctx = forward.extend(ctx, batch, shape.inputs)
        return StepOutputs(forward.forward(batch, ctx), forward.no_logits)

    def _settle(self, rows_np: IntArray) -> None:
        """Waits for what forwards before have brought these rows."""
        while any(np.isin(pending.layout.rows_np, rows_np).any() for pending in self._pending):
            self._receive(self._pending.popleft())

    def _receive(self, pending: PendingForward) -> None:
        lines, parts = pending.layout.num_lines, self._parts
        tokens, peaks = self._receive_lines(pending.num_lines)
        self._commit_late(pending.layout, tokens[:lines], peaks[:lines])
        if self._most_drafts:
            drafts = self._receive_drafts(pending.num_rows)[pending.at_np]
            rows = parts.device.upload(pending.layout.rows_np).long()
            parts.requests.put_drafts(rows, drafts[:, 1:], drafts[:, 0])

    def _receive_lines(self, count: int) -> Choice:
        tokens, peaks = self._received[:count], self._received_peaks[:count]
        self._links.receive_broadcast(tokens)
        self._links.receive_broadcast(peaks)
        return tokens, peaks

    def _receive_drafts(self, num_rows: int) -> torch.Tensor:
        """[R, 1 + most]: how many, and these"""
        drafts = torch.empty((num_rows, 1 + self._most_drafts), dtype=torch.int32, device=self._out.device)
        if self._most_drafts:
            self._links.receive_broadcast(drafts)
        return drafts

    def _commit_late(self, layout: BatchLayout, tokens: torch.Tensor, peaks: torch.Tensor) -> None:
        """The rows have gone nowhere since: what is gathered of them is what the forward computed."""
        batch = self._late.named(layout, shape_of(layout, Until.TOKENS))
        self._forward.gather(batch)
        self._parts.ops.rows.commit(self._parts.requests.state, batch, tokens, peaks, self._out[: layout.num_lines])

"""States of a model that drafts: one of each row has taken in what is certain, another is tried with drafts."""

from __future__ import annotations

from cadence.device.base import Device
from cadence.kernels.interface.row_ops import DraftBatch, DraftState, RowOps
from cadence.models.interface.row_states import RowStates
from cadence.runner.features.states.rows import RunBuffers, StateRows
from cadence.runner.shapes import Shapes


class DrafterStates:
    """Implements `DraftedStates`. After a forward of the target the model computes what it lacks of each row, drafts
    that were kept among it: it has them from the target, and its own guesses are forgotten."""

    remembers = True

    def __init__(self, device: Device, rows: StateRows, ops: RowOps, shapes: Shapes) -> None:
        self._rows = rows
        self._ops = ops
        self._first, self._next = RunBuffers(device, shapes), RunBuffers(device, shapes)

    def first(self, proposer: DraftState, batch: DraftBatch) -> RowStates:
        runs, following = self._first.of(batch.first), self._next.of(batch.next)
        self._ops.find_draft_runs(proposer, batch, self._rows.taken_by_drafter, runs, following)
        return RowStates(self._rows.drafter.layers, runs)

    def following(self, batch: DraftBatch, draft: int) -> RowStates:
        runs = self._next.of(batch.next)
        if draft == 1:
            self._rows.drafter.copy_to(self._rows.tried, runs.rows, self._ops)
        return RowStates(self._rows.tried.layers, runs)

    def end(self, proposer: DraftState, batch: DraftBatch) -> None:
        self._ops.forget_drafts(proposer, batch, self._rows.taken_by_drafter)

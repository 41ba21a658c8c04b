"""The stages before the last, to which it broadcasts what it chose."""

from __future__ import annotations

from cadence.kernels.interface.links import StageLinks
from cadence.kernels.interface.row_ops import RowOps, RowState, StepBatch
from cadence.sample.sampler import Choice


class EarlierStages:
    """What is sent has the order in which `StageLoop` receives it: tokens, peaks, and drafts where there may be any."""

    def __init__(self, links: StageLinks, ops: RowOps, most_drafts: int) -> None:
        self._links = links
        self._ops = ops
        self._most_drafts = most_drafts

    def broadcast_chosen(self, chosen: Choice) -> None:
        if len(chosen[0]):
            for values in chosen:
                self._links.broadcast(values)

    def broadcast_drafts(self, state: RowState, batch: StepBatch) -> None:
        if self._most_drafts and len(batch.line_at):
            self._links.broadcast(self._ops.drafts(state, batch, self._most_drafts))

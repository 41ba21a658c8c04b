"""Drafts that are looked up."""

from __future__ import annotations

from collections.abc import Sequence

from cadence.kernels.interface.row_ops import RowState, StepBatch
from cadence.models.interface.model import LayerCache
from cadence.runner.after_sample import MANY, BeginsWith, States
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import StepShape
from cadence.speculate.proposer import Proposer


class LookedUpDrafts:
    """By a proposer, which sees tokens alone."""

    begins_with = BeginsWith()
    by_model = False

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def use_caches(self, caches: Sequence[LayerCache]) -> None:
        """It keeps no keys."""

    def name(self, layout: BatchLayout, shape: StepShape) -> int:
        return MANY

    def repeated(self, layout: BatchLayout, depth: int, num_forwards: int) -> None:
        """The batch says all."""

    def propose(self, state: RowState, batch: StepBatch, states: States) -> None:
        self._proposer.propose(state, batch)

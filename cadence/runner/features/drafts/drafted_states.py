"""What a model that drafts keeps of rows beside keys, as the loop of its drafts knows it."""

from __future__ import annotations

from typing import Protocol

from cadence.kernels.interface.row_ops import DraftBatch, DraftState
from cadence.models.interface.row_states import NO_STATES, RowStates


class DraftedStates(Protocol):
    """All of these may be recorded."""

    remembers: bool  # there is such

    def first(self, proposer: DraftState, batch: DraftBatch) -> RowStates:
        """For the forward of draft 0, after `begin_drafts`."""
        ...

    def following(self, batch: DraftBatch, draft: int) -> RowStates:
        """For that of draft 1, 2, …, after the draft before it was taken."""
        ...

    def end(self, proposer: DraftState, batch: DraftBatch) -> None:
        """After the last one."""
        ...


class NoDraftedStates:
    """Keys are all it keeps: those of wrong drafts are written over."""

    remembers = False

    def first(self, proposer: DraftState, batch: DraftBatch) -> RowStates:
        return NO_STATES

    def following(self, batch: DraftBatch, draft: int) -> RowStates:
        return NO_STATES

    def end(self, proposer: DraftState, batch: DraftBatch) -> None:
        """What it has computed of drafts, it has."""

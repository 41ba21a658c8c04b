"""Proposers of drafts: tokens that may come next, all verified at once by the next forward."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from cadence.core.contract.table import RequestTable
from cadence.kernels.interface.row_ops import RowState, StepBatch


class Proposer(Protocol):
    def propose(self, state: RowState, batch: StepBatch) -> None:
        """Writes drafts after the newest token of rows that have just been committed, and how many they are; rows that
        are quiet or have no line get none. It may be recorded: no decision depends on what the host sees."""
        ...

    def tables(self, state: RowState) -> Sequence[RequestTable]:
        """What it keeps per request itself. They are told which rows begin and end, and `remove` finds what the
        device holds of a row still there."""
        return ()


class NoProposer(Proposer):
    """Every forward brings each row one token."""

    def propose(self, state: RowState, batch: StepBatch) -> None:
        """None."""

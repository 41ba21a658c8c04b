"""Prompt lookup: what followed the last few tokens where they stood before, is proposed again."""

from __future__ import annotations

import torch

from cadence.kernels.interface.row_ops import RowOps, RowState, StepBatch
from cadence.speculate.proposer import Proposer


class NgramProposer(Proposer):
    def __init__(self, ops: RowOps, most: torch.Tensor, shortest: int, longest: int) -> None:
        """most [num_rows] int32, strided: drafts of a row. shortest, longest: tokens that must have stood there."""
        self._ops = ops
        self._most = most
        self._shortest = shortest
        self._longest = longest

    def propose(self, state: RowState, batch: StepBatch) -> None:
        self._ops.propose_ngram(state, batch, self._most, self._shortest, self._longest)

"""How runs are walked through: a program has a part of a row's state and takes in token after token.

The walk of a run: kept inputs that turned out right, tokens that are certain, what is to be stored, and drafts. All
arithmetic is spelled out (`tl.fma`, and no fusing by the compiler), and sums are taken over tiles of one shape: so a
token's bits are the same in every kernel that walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from cadence.kernels.interface.state_ops import StateRuns, StateTable

_ALL = 1 << 30


@dataclass(frozen=True, slots=True)
class Walk:
    """Runs [first, first + count)."""

    runs: StateRuns
    first: int
    count: int
    single: bool  # each has one token
    most_tokens: int = _ALL  # of runs of more, drafts alone: what is certain is taken in chunks, just before

    def begins_early(self, pdl: bool) -> bool:
        """Whether its kernel may begin before the one ahead of it has ended: rows' states are not written by that."""
        return pdl and self.most_tokens == _ALL


def walks_of(runs: StateRuns) -> list[Walk]:
    single, num_runs = runs.num_single, runs.rows.shape[0]
    parts = [Walk(runs, 0, single, True), Walk(runs, single, num_runs - single, False)]
    return [walk for walk in parts if walk.count]


def row_words(walk: Walk, table: StateTable) -> tuple[torch.Tensor | int, ...]:
    """Arguments of every walking kernel: tables, runs, strides of a row."""
    runs, state, kept = walk.runs, table.state, table.kept
    return (
        state, kept, runs.rows, runs.query_start, runs.replayed, runs.certain,
        walk.first, walk.most_tokens, state.stride(0), kept.stride(0), kept.stride(1),
    )  # fmt: skip

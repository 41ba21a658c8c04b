"""How runs are walked through: a program has a part of a row's state and takes in token after token.

The walk of a run: kept inputs that turned out right, tokens that are certain, what is to be stored, and drafts. All
arithmetic is spelled out (`tl.fma`, and no fusing by the compiler), and sums are taken over tiles of one shape: so a
token's bits are the same in every kernel that walks.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from cadence.kernels.interface.state_ops import StateRuns, StateTable


@dataclass(frozen=True, slots=True)
class WalkTile:
    """What a program has of a state, in its last dimension; all of the one before it."""

    block: int
    warps: int
    ahead: int = 1  # tokens that are loaded while as many before them are taken in


@dataclass(frozen=True, slots=True)
class Walk:
    """Runs [first, first + count)."""

    runs: StateRuns
    first: int
    count: int
    single: bool  # each has one token


def walks_of(runs: StateRuns) -> list[Walk]:
    single, num_runs = runs.num_single, runs.rows.shape[0]
    parts = [Walk(runs, 0, single, True), Walk(runs, single, num_runs - single, False)]
    return [walk for walk in parts if walk.count]


def row_words(walk: Walk, table: StateTable) -> tuple[torch.Tensor | int, ...]:
    """Arguments of every walking kernel: tables, runs, strides of a row."""
    runs, state, kept = walk.runs, table.state, table.kept
    return (
        state, kept, runs.rows, runs.query_start, runs.replayed, runs.certain,
        walk.first, state.stride(0), kept.stride(0), kept.stride(1),
    )  # fmt: skip


def block_of(size: int, most: int) -> int:
    """At most the size, as long as Triton can."""
    return min(triton.next_power_of_2(size), most)

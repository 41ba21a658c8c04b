"""What the host says of a forward: which rows compute how many tokens, and behind which of them one is chosen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cadence.core.step import IntArray, StepPlan


@dataclass(frozen=True, slots=True)
class BatchLayout:
    """R rows compute T tokens and have L lines: see `StepBatch`."""

    rows_np: IntArray  # [R]
    query_start_np: IntArray  # [R + 1]
    line_start_np: IntArray  # [R + 1]
    num_computed_np: IntArray  # [R] before this forward, upper bounds
    line_rows_np: IntArray  # [L]
    num_single: int  # leading rows that compute one token
    max_query_len: int

    @staticmethod
    def of(plan: StepPlan) -> BatchLayout:
        """Of a plan's first forward."""
        counts_np = plan.num_tokens_np
        several_np = np.flatnonzero(counts_np != 1)
        return BatchLayout(
            rows_np=plan.rows_np,
            query_start_np=_starts(counts_np),
            line_start_np=_starts(plan.samples_np),
            num_computed_np=plan.num_computed_np,
            line_rows_np=plan.rows_np[plan.samples_np],
            num_single=int(several_np[0]) if len(several_np) else len(counts_np),
            max_query_len=int(counts_np.max(initial=1)),
        )

    def following(self) -> BatchLayout:
        """Of the forwards after it: each row with a line computes the token it has just got."""
        return self if self.one_each else one_each(self.line_rows_np)

    @property
    def num_rows(self) -> int:
        return len(self.rows_np)

    @property
    def num_tokens(self) -> int:
        return int(self.query_start_np[-1])

    @property
    def num_lines(self) -> int:
        return len(self.line_rows_np)

    @property
    def one_each(self) -> bool:
        return self.num_single == len(self.rows_np) == len(self.line_rows_np)


def one_each(rows_np: IntArray) -> BatchLayout:
    """Every row computes one token and has a line."""
    count = len(rows_np)
    start_np = np.arange(count + 1, dtype=np.int32)
    return BatchLayout(rows_np, start_np, start_np, np.zeros(count, dtype=np.int32), rows_np, count, 1)


def _starts(counts_np: np.ndarray) -> IntArray:
    """[n] -> [n + 1]: where each begins, and where the last one ends"""
    start_np = np.zeros(len(counts_np) + 1, dtype=np.int32)
    np.cumsum(counts_np, out=start_np[1:])
    return start_np

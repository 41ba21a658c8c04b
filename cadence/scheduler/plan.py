"""A step plan while it is being drawn up."""

from __future__ import annotations

import numpy as np

from cadence.core.step import BoolArray, NewBlocks, NewRow, StepPlan
from cadence.scheduler.rows import Column

_NO_ROWS_NP: Column = np.zeros(0, dtype=np.int64)


class PlanDraft:
    """First the running rows, as arrays; then admitted ones, one by one; then it is closed."""

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.begun: list[NewRow] = []
        self.blocks: list[NewBlocks] = []
        self.claimed = 0  # blocks spoken for by rows that sit this step out until blocks come free
        self.short = False  # blocks or budget ran out for running rows: nobody is admitted
        self.num_forwards = 1
        self.rows_np = _NO_ROWS_NP  # [n]
        self.sampling_np = _NO_ROWS_NP  # [s] rows that sample, in plan order; known when closed
        self._tokens_np = _NO_ROWS_NP
        self._computed_np = _NO_ROWS_NP
        self._samples_np: BoolArray = _NO_ROWS_NP.astype(np.bool_)
        self._admitted: list[tuple[int, int, int, bool]] = []  # (row, tokens, computed before, samples)

    @property
    def all_decode(self) -> bool:
        """Whether every row has been here before, computes one token and samples the next."""
        return not self.begun and len(self.sampling_np) == len(self.rows_np) == int(self._tokens_np.sum())

    def set_running(self, rows_np: Column, tokens_np: Column, computed_np: Column, samples_np: BoolArray) -> None:
        self.rows_np, self._tokens_np = rows_np, tokens_np
        self._computed_np, self._samples_np = computed_np, samples_np

    def admit(self, row: NewRow, num_tokens: int, samples: bool) -> None:
        self.begun.append(row)
        self._admitted.append((row.row, num_tokens, row.num_computed, samples))

    def close(self) -> None:
        """Nobody else is admitted. Rows that compute one token come first, those with the longest past at the head:
        a device that hands out sequence after sequence to its processors ends with short ones."""
        if self._admitted:
            admitted_np = np.array(self._admitted, dtype=np.int64)
            self.rows_np = np.concatenate([self.rows_np, admitted_np[:, 0]])
            self._tokens_np = np.concatenate([self._tokens_np, admitted_np[:, 1]])
            self._computed_np = np.concatenate([self._computed_np, admitted_np[:, 2]])
            self._samples_np = np.concatenate([self._samples_np, admitted_np[:, 3] != 0])
        order_np = np.lexsort((-self._computed_np, self._tokens_np > 1))
        self.rows_np, self._tokens_np = self.rows_np[order_np], self._tokens_np[order_np]
        self._computed_np, self._samples_np = self._computed_np[order_np], self._samples_np[order_np]
        self.sampling_np = self.rows_np[self._samples_np]

    def build(self, ended: list[int], num_together: int) -> StepPlan:
        return StepPlan(
            step_id=self.step_id,
            ended=ended,
            begun=self.begun,
            blocks=self.blocks,
            rows_np=self.rows_np.astype(np.int32),
            num_tokens_np=self._tokens_np.astype(np.int32),
            num_computed_np=self._computed_np.astype(np.int32),
            samples_np=self._samples_np,
            num_forwards=self.num_forwards,
            num_together=num_together,
        )

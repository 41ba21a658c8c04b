"""A step plan while it is being drawn up."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from cadence.core.contract.step import NewBlocks, NewRow, StepPayloads, StepPlan
from cadence.scheduler.rows import Column

_NO_ROWS_NP: Column = np.zeros(0, dtype=np.int64)


class PlanDraft:
    """First the running rows, as arrays; then admitted ones, one by one; then it is closed."""

    def __init__(self, step_id: int) -> None:
        self.step_id = step_id
        self.begun: list[NewRow] = []
        self.payloads = StepPayloads()
        self.blocks: list[NewBlocks] = []
        self.claimed = 0  # blocks spoken for by rows that sit this step out until blocks come free
        self.short = False  # blocks or budget ran out for running rows: no request is admitted
        self.has_turns = False  # rows that could decode do so in another step
        self.num_forwards = 1
        self.width = 1  # most tokens that a row which goes on samples in a forward
        self.waits: list[int] = []  # rows that sample and wait for mail, in plan order
        self.certain: list[int] = []  # rows whose drafts the host knows to be right
        self.rows_np = _NO_ROWS_NP  # [n]
        self.sampling_np = _NO_ROWS_NP  # [s] rows that sample, in plan order; known when closed
        self._tokens_np = _NO_ROWS_NP
        self._computed_np = _NO_ROWS_NP
        self._lines_np = _NO_ROWS_NP
        self.following_np = _NO_ROWS_NP  # [f] of these, those that do not wait; known when closed
        self._admitted: list[tuple[int, int, int, int]] = []  # (row, tokens, computed before, tokens to sample)

    @property
    def all_decode(self) -> bool:
        """Whether every row has been here before and computes only tokens after which it samples."""
        return not self.begun and bool((self._tokens_np == self._lines_np).all())

    @property
    def num_tokens(self) -> int:
        """Of the running rows, with as many drafts as there may be."""
        return int(self._tokens_np.sum())

    @property
    def lines_np(self) -> Column:
        """[s] most tokens that each row which samples does so in the first forward; known when closed"""
        return self._lines_np[self._lines_np > 0]

    def set_running(self, rows_np: Column, tokens_np: Column, computed_np: Column, lines_np: Column) -> None:
        """tokens [n], without drafts; lines [n]: 0, 1, or 1 and as many as there may be drafts"""
        self.rows_np, self._tokens_np = rows_np, tokens_np + np.maximum(lines_np - 1, 0)
        self._computed_np, self._lines_np = computed_np, lines_np

    def admit(self, row: NewRow, num_tokens: int, samples: bool) -> None:
        self.begun.append(row)
        self._admitted.append((row.row, num_tokens, row.num_computed, samples))

    def close(self, waits_np: npt.NDArray[np.bool_]) -> None:
        """No further request is admitted. waits [rows]: which wait for mail before they sample.

        Rows that compute one token come first, those with the longest past at the head: a device that hands out
        sequence after sequence to its processors ends with short ones."""
        if self._admitted:
            admitted_np = np.array(self._admitted, dtype=np.int64)
            self.rows_np = np.concatenate([self.rows_np, admitted_np[:, 0]])
            self._tokens_np = np.concatenate([self._tokens_np, admitted_np[:, 1]])
            self._computed_np = np.concatenate([self._computed_np, admitted_np[:, 2]])
            self._lines_np = np.concatenate([self._lines_np, admitted_np[:, 3]])
        order_np = np.lexsort((-self._computed_np, self._tokens_np > 1))
        self.rows_np, self._tokens_np = self.rows_np[order_np], self._tokens_np[order_np]
        self._computed_np, self._lines_np = self._computed_np[order_np], self._lines_np[order_np]
        self.sampling_np = self.following_np = self.rows_np[self._lines_np > 0]
        waiting_np = waits_np[self.sampling_np]
        if waiting_np.any():
            self.following_np = self.sampling_np[~waiting_np]
            self.waits = self.sampling_np[waiting_np].tolist()

    def build(self, ended: list[int], num_together: int) -> StepPlan:
        return StepPlan(
            step_id=self.step_id,
            ended=ended,
            begun=self.begun,
            blocks=self.blocks,
            rows_np=self.rows_np.astype(np.int32),
            num_tokens_np=self._tokens_np.astype(np.int32),
            num_computed_np=self._computed_np.astype(np.int32),
            num_samples_np=self._lines_np.astype(np.int32),
            num_forwards=self.num_forwards,
            num_together=num_together,
            width=self.width,
            waits=self.waits,
            payloads=self.payloads,
        )

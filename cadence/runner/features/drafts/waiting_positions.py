"""The target's states of positions whose keys a head has not made yet: while no drafts are asked for, these wait."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from cadence.core.contract.step import IntArray, NewRow
from cadence.core.contract.table import RequestTable
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import KeptStates, StepBatch
from cadence.runner.after_sample import MANY, States
from cadence.runner.layout import NO_LAYOUT, BatchLayout, keys_layout

ROOM = 32  # positions of a row that may wait: few runs of many tokens, in little memory


class WaitingPositions(RequestTable, Protocol):
    """Which of the last positions of rows wait for their proposer, and what it needs to make up for them."""

    room: int  # most positions of a row

    def begin(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> tuple[BatchLayout, int]:
        """So many forwards are about to be queued, after which tokens of the layout's first rows wait, one of each ->
        what the proposer has to compute at once; and how many forwards there is room for, these included"""
        ...

    def add_forwards(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> None:
        """So many more such forwards were queued."""
        ...

    def keep(self, ops: Ops, batch: StepBatch, states: States) -> None:
        """After a forward: what is needed of the batch's leading rows of one token, which wait. It may be recorded."""
        ...

    def kept(self, ops: Ops, batch: StepBatch) -> States:
        """Of the tokens of a batch that waited. It may be recorded."""
        ...


class NoWaitingPositions:
    """Of a proposer that computes from tokens alone what it lacks, or lacks nothing."""

    room = 0

    def add(self, row: int, request: NewRow) -> None:
        """Nothing waits."""

    def remove(self, row: int) -> None:
        """Nothing waits."""

    def flush(self) -> None:
        """Nothing waits."""

    def begin(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> tuple[BatchLayout, int]:
        return NO_LAYOUT, MANY

    def add_forwards(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> None:
        """Nothing waits."""

    def keep(self, ops: Ops, batch: StepBatch, states: States) -> None:
        """Nothing waits."""

    def kept(self, ops: Ops, batch: StepBatch) -> States:
        return ()


class KeptStateRows:
    """Implements `WaitingPositions`. A forward of one token brings a row exactly one position, unless it has ended: the
    host counts them without asking the device."""

    def __init__(self, kept: KeptStates) -> None:
        self._kept = kept
        self.room = kept.room
        self._count_np = np.zeros(len(kept.states[0]), dtype=np.int32)  # [num_rows] positions that wait

    def add(self, row: int, request: NewRow) -> None:
        self._count_np[row] = 0

    def remove(self, row: int) -> None:
        """What waits will not be asked for."""

    def flush(self) -> None:
        """The device alone writes states."""

    def begin(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> tuple[BatchLayout, int]:
        """Due is all that waits of rows for which the proposer drafts now. If another has no room, it is due, too,
        and so are all that are half full: one run of many rows costs less than one of each."""
        counts_np = self._count_np[layout.rows_np]
        waiting_np = counts_np[:num_waiting]
        overdue, most = NO_LAYOUT, int(waiting_np.max(initial=0))
        has_room = most + num_forwards <= self.room
        if not has_room or num_waiting < len(counts_np):
            due_np = counts_np > 0
            due_np[:num_waiting] = not has_room and waiting_np >= self._enough(num_forwards)
            if due_np.any():
                overdue = self._take(np.unique(layout.rows_np[due_np]))
                counts_np[due_np] = 0
                most = int(waiting_np.max(initial=0))
        self._count_np[layout.rows_np[:num_waiting]] = waiting_np + num_forwards
        return overdue, self.room - most if num_waiting else MANY

    def add_forwards(self, layout: BatchLayout, num_waiting: int, num_forwards: int) -> None:
        self._count_np[layout.rows_np[:num_waiting]] += num_forwards

    def _enough(self, num_forwards: int) -> int:
        """Positions with which a row is due before so many forwards."""
        return max(min(self.room // 2, self.room + 1 - num_forwards), 1)

    def _take(self, rows_np: IntArray) -> BatchLayout:
        counts_np = self._count_np[rows_np]
        self._count_np[rows_np] = 0
        return keys_layout(rows_np, counts_np)

    def keep(self, ops: Ops, batch: StepBatch, states: States) -> None:
        if batch.num_single:
            ops.rows.keep_states(self._kept, batch, states)

    def kept(self, ops: Ops, batch: StepBatch) -> States:
        return ops.rows.kept_states(self._kept, batch)

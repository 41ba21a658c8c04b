"""Where the states of rows stand, and what the next forward makes of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.contract.step import NewRow
from cadence.core.state_spec import STATES, StateRoom
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.row_ops import RowOps, RowState, StepBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.row_states import RowStates
from cadence.runner.caches.states import StateMemory, StateSizes
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes


class StateRows:
    """A `RequestTable` and an `InputHook`, of every forward. The device itself counts the tokens that states have taken
    in; a row's are fewer than it has computed where drafts were kept, until its next forward."""

    name = STATES

    def __init__(self, device: Device, sizes: StateSizes, ops: RowOps, rows: RowState, shapes: Shapes) -> None:
        self._device = device
        self._sizes = sizes
        self._ops = ops
        self._rows = rows
        most = max(shapes.most_rows, 1)
        columns = torch.zeros((4, most), dtype=torch.int32, device=device.torch_device)
        self._lines, self._replayed, self._certain, self._kept = columns
        self._fresh: list[int] = []  # rows that begin without a token
        self._restored: list[tuple[int, int]] = []  # (slot, row) of those that begin with a snapshot
        self.allocate(StateRoom(0))

    def allocate(self, room: StateRoom) -> None:
        """Rows have states from now on; until then there is the dummy's alone, which all share and none changes."""
        self.memory = StateMemory(self._device, self._sizes, room)
        self._scalars = RowScalars(self._device, room.rows + 1, {"taken": "i32"})
        self._taken = self._scalars.get("taken")  # [rows + 1] int32, strided

    def add(self, row: int, request: NewRow) -> None:
        if row >= self.memory.num_rows:
            return  # the dummy
        self._scalars.set(row, taken=request.num_computed)
        slot = request.payloads.get(STATES)
        if slot is None:
            self._fresh.append(row)
        else:
            self._restored.append((slot, row))

    def remove(self, row: int) -> None:
        """Its state is cleared when another begins there: until then it may be saved."""

    def flush(self) -> None:
        self._scalars.flush()
        self.memory.clear(self._fresh)
        for slot, row in self._restored:
            self.memory.restore(slot, row)
        self._fresh.clear()
        self._restored.clear()

    def joins(self, layout: BatchLayout) -> bool:
        return True

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Of a forward once; where its context is made again, for heads and logits, no layer reads the runs."""
        count = batch.rows.shape[0]
        runs = StateRuns(
            rows=self._lines[:count],
            query_start=batch.query_start,
            replayed=self._replayed[:count],
            certain=self._certain[:count],
            kept=self._kept[:count],
            num_single=batch.num_single,
            max_query_len=batch.max_query_len,
        )
        self._ops.find_state_runs(self._rows, batch, self._taken, runs)
        return replace(ctx, states=RowStates(self.memory.layers, runs))

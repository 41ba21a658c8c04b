"""Where the states of rows stand, and what the next forward makes of them."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.contract.step import NewRow
from cadence.core.model.state_spec import STATES, StateRoom
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.row_ops import RowOps, RowState, StepBatch
from cadence.kernels.interface.state_ops import StateRuns
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.row_states import RowStates
from cadence.runner.caches.states import StateMemory, StateSizes
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes

_COLUMNS = {"taken": "i32", "drafter": "i32"}  # tokens that states have taken in: the model's, those of one that drafts


class RunBuffers:
    """Where `StateRuns` of every forward lie: their leading part."""

    def __init__(self, device: Device, shapes: Shapes) -> None:
        size = (4, max(shapes.most_rows, 1))
        self._columns = torch.zeros(size, dtype=torch.int32, device=device.torch_device)

    def of(self, batch: StepBatch) -> StateRuns:
        count = batch.rows.shape[0]
        rows, replayed, certain, kept = (column[:count] for column in self._columns)
        return StateRuns(
            rows=rows,
            query_start=batch.query_start,
            replayed=replayed,
            certain=certain,
            kept=kept,
            num_single=batch.num_single,
            max_query_len=batch.max_query_len,
        )


class StateRows:
    """A `RequestTable` and an `InputHook`, of every forward. The device itself counts the tokens that states have taken
    in; a row's are fewer than it has computed where drafts were kept, until its next forward."""

    name = STATES

    def __init__(self, device: Device, sizes: StateSizes, ops: RowOps, rows: RowState, shapes: Shapes) -> None:
        self._device = device
        self._sizes = sizes
        self._ops = ops
        self._rows = rows
        self._buffers = RunBuffers(device, shapes)
        self._fresh: list[int] = []  # rows that begin without a token
        self._restored: list[tuple[int, int]] = []  # (slot, row) of those that begin with a snapshot
        self.allocate(StateRoom(0))

    def allocate(self, room: StateRoom) -> None:
        """Rows have states from now on; until then there is the dummy's alone, which all share and none changes."""
        self._memory = StateMemory(self._device, self._sizes, room)
        self.drafter = StateMemory(self._device, self._sizes.of_drafter, room)
        self.tried = StateMemory(self._device, self._sizes.of_drafter, StateRoom(room.rows))  # its states with drafts
        self._scalars = RowScalars(self._device, room.rows + 1, _COLUMNS)
        self._taken = self._scalars.get("taken")  # [rows + 1] int32, strided
        self.taken_by_drafter = self._scalars.get("drafter")  # the same

    def memory(self) -> list[torch.Tensor]:
        return [tensor for memory in (self._memory, self.drafter, self.tried) for tensor in memory.tensors()]

    def add(self, row: int, request: NewRow) -> None:
        if row >= self._memory.num_rows:
            return  # the dummy
        self._scalars.set(row, taken=request.num_computed, drafter=request.num_computed)
        slot = request.payloads.get(STATES)
        if slot is None:
            self._fresh.append(row)
        else:
            self._restored.append((slot, row))

    def remove(self, row: int) -> None:
        """Its state is cleared when another begins there: until then it may be saved."""

    def flush(self) -> None:
        self._scalars.flush()
        for memory in (self._memory, self.drafter):
            memory.clear(self._fresh)
            for slot, row in self._restored:
                memory.restore(slot, row)
        self._fresh.clear()
        self._restored.clear()

    def save(self, row: int, slot: int) -> None:
        self._memory.save(row, slot)
        self.drafter.save(row, slot)

    def joins(self, layout: BatchLayout) -> bool:
        return True

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        """Of a forward once; where its context is made again, for heads and logits, no layer reads the runs."""
        runs = self._buffers.of(batch)
        self._ops.find_state_runs(self._rows, batch, self._taken, runs)
        return replace(ctx, states=RowStates(self._memory.layers, runs))

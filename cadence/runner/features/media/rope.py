"""Where the tokens of every row stand, of a model whose positions have axes."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.contract.media_work import RopeRow
from cadence.core.contract.step import NewRow
from cadence.core.inputs.media import MEDIA, MOST_SEGMENTS, SEGMENT
from cadence.device.base import Device
from cadence.device.staged import RowLists, RowScalars
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.rope_ops import AxesTable, RopeSegments
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.media import RopeRows
from cadence.models.interface.model import ForwardContext
from cadence.runner.feature import DeviceFeature
from cadence.runner.layout import BatchLayout

ROPE = "rope"


class RopeTurns:
    """An `InputHook`, of every forward of a model whose positions have axes."""

    name = ROPE

    def __init__(self, device: Device, ops: Ops, segments: RopeSegments, table: AxesTable, most_tokens: int) -> None:
        """table: the model's, with axes; most_tokens: of a forward"""
        self._ops, self._segments, self._table = ops.axes, segments, table
        size = (most_tokens, table.cos_sin.shape[1])
        self._turns = torch.zeros(size, dtype=torch.float32, device=device.torch_device)
        self._tokens = torch.arange(most_tokens, device=device.torch_device)  # a constant

    def joins(self, layout: BatchLayout) -> bool:
        return True

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        count = batch.ids.shape[0]
        turns = self._turns[:count]
        self._ops.turns(self._segments, batch, self._table, turns)
        return replace(ctx, rope=RopeRows(turns, self._tokens[:count]))


class RopeTable:
    """A `RequestTable`: rows of text alone have no segments."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._lists = RowLists(device, num_rows, MOST_SEGMENTS * SEGMENT)
        self._counts = RowScalars(device, num_rows, {"count": "i32"})
        lines = self._lists.table.view(num_rows, MOST_SEGMENTS, SEGMENT)
        self.segments = RopeSegments(lines, self._counts.get("count"))

    def add(self, row: int, request: NewRow) -> None:
        payload = request.payloads.get(MEDIA)
        count = len(payload.segments_np) if isinstance(payload, RopeRow) else 0
        if count:
            self._lists.write(row, 0, payload.segments_np.ravel())
        self._counts.set(row, count=count)

    def remove(self, row: int) -> None:
        self._counts.set(row, count=0)

    def flush(self) -> None:
        self._lists.flush()
        self._counts.flush()


class DeviceRope(DeviceFeature):
    """Rows begin with where they stand; no plan says more."""

    name = ROPE

    def __init__(self, rows: RopeTable, turns: RopeTurns) -> None:
        self.rows = rows
        self.tables = [rows]
        self.inputs = [turns]

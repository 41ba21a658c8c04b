"""The adapter of every row: the slot it lies in, on the device; and what a plan puts into slots."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.adapter import ADAPTERS, NO_SLOT
from cadence.core.contract.step import NewRow
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.lora_ops import LoraOps
from cadence.kernels.interface.row_ops import StepBatch
from cadence.lora.store import AdapterStore
from cadence.models.interface.lora_batch import LoraBatch
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.wanted import LastTokens, Wanted
from cadence.runner.feature import DeviceFeature
from cadence.runner.graphs import StepGraphs
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes


class AdapterRows:
    """A `RequestTable` and an `InputHook`: forwards get the slot of each token."""

    name = ADAPTERS

    def __init__(self, device: Device, num_rows: int, ops: LoraOps, shapes: Shapes) -> None:
        self._ops = ops
        self._scalars = RowScalars(device, num_rows, {"slot": "i32"})
        for row in range(num_rows):
            self.remove(row)
        self._slots = self._scalars.get("slot")  # [num_rows] int32, strided
        self._slots_np = self._scalars.get_np("slot")

        def column(size: int) -> torch.Tensor:
            return torch.full((size,), NO_SLOT, dtype=torch.int32, device=device.torch_device)

        self._tokens = column(shapes.most_tokens)
        self._wanted = column(max(shapes.most_lines, 1))
        self._lines = column(shapes.most_lines)
        self._each = torch.arange(shapes.most_lines + 1, dtype=torch.int32, device=device.torch_device)  # a constant

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, slot=request.payloads.get(ADAPTERS, NO_SLOT))

    def remove(self, row: int) -> None:
        self._scalars.set(row, slot=NO_SLOT)

    def flush(self) -> None:
        self._scalars.flush()

    def joins(self, layout: BatchLayout) -> bool:
        return bool((self._slots_np[layout.rows_np] != NO_SLOT).any())

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        return replace(ctx, lora=self._batch(batch, ctx.wanted))

    def _batch(self, batch: StepBatch, wanted: Wanted) -> LoraBatch:
        tokens = self._tokens[: batch.ids.shape[0]]
        self._ops.token_slots(self._slots, batch.rows, batch.query_start, tokens)
        lines = tokens if batch.all_lines else self._of_rows(batch.line_rows, self._lines)
        if not isinstance(wanted, LastTokens):
            return LoraBatch(tokens, tokens, lines)
        if wanted.rows is batch.line_rows:
            return LoraBatch(tokens, lines, lines)
        return LoraBatch(tokens, self._of_rows(wanted.rows, self._wanted), lines)

    def _of_rows(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """rows [n] int32 -> the slot of each, in `out`"""
        count = rows.shape[0]
        if count:
            self._ops.token_slots(self._slots, rows, self._each[: count + 1], out[:count])
        return out[:count]


class DeviceAdapters(DeviceFeature):
    """What a plan says lies in slots is put there before rows begin."""

    name = ADAPTERS

    def __init__(self, device: Device, store: AdapterStore, graphs: StepGraphs, rows: AdapterRows) -> None:
        self.tables = self.inputs = [rows]
        self._device = device
        self._store = store
        self._graphs = graphs

    def apply(self, payload: list[tuple[int, str]]) -> None:
        """(slot, digest of what lies there from now on)"""
        outdated = [self._store.put(slot, digest) for slot, digest in payload]
        if any(outdated):
            self._device.synchronize()  # none of them runs
            self._graphs.forget_with(ADAPTERS)

"""The memory of layers that keep a state: a line for each row, and slots for snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from cadence.core.model.state_spec import LayerState, StateRoom
from cadence.device.base import Device
from cadence.kernels.interface.row_ops import RowOps
from cadence.kernels.interface.state_ops import StateTable
from cadence.models.interface.row_states import LayerTables


@dataclass(frozen=True, slots=True)
class StateSizes:
    """What the layers of a device keep."""

    layers: Sequence[LayerState]
    dtype: torch.dtype  # of activations
    most_drafts: int  # of a row
    drafter: Sequence[LayerState] = ()  # of a model that drafts for them

    @property
    def of_drafter(self) -> StateSizes:
        """It keeps a state twice, once to try tokens on; of a token, nothing more."""
        return StateSizes(self.drafter, self.dtype, 0)

    @property
    def row_bytes(self) -> int:
        own = sum(layer.row_bytes(self.most_drafts, self.dtype.itemsize) for layer in self.layers)
        return own + 2 * sum(layer.row_bytes(0, self.dtype.itemsize) for layer in self.drafter)

    @property
    def snapshot_bytes(self) -> int:
        return sum(layer.snapshot_bytes(self.dtype.itemsize) for layer in (*self.layers, *self.drafter))


class AlikeLayers:
    """Of n layers that keep the same, side by side: all are cleared or copied by one call."""

    def __init__(self, device: Device, count: int, layer: LayerState, sizes: StateSizes, room: StateRoom) -> None:
        (channels, width), lines, drafts = layer.conv, room.rows + 1, sizes.most_drafts
        self._last = width - 1  # inputs that a state has taken in
        self._inputs = device.zeros((count, lines, self._last + drafts, channels), sizes.dtype)
        self._state = device.zeros((count, lines, *layer.state), torch.float32)
        self._kept = device.zeros((count, lines, drafts, layer.kept), sizes.dtype)
        self._saved_inputs = device.zeros((count, room.snapshots, self._last, channels), sizes.dtype)
        self._saved_state = device.zeros((count, room.snapshots, *layer.state), torch.float32)

    def tables(self) -> list[LayerTables]:
        each = zip(self._inputs, self._state, self._kept, strict=True)
        return [LayerTables(inputs, StateTable(state, kept)) for inputs, state, kept in each]

    @property
    def taken_in(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What states are made of: inputs [n, lines, K - 1, C], state [n, lines, …]"""
        return self._inputs[:, :, : self._last], self._state

    def tensors(self) -> list[torch.Tensor]:
        return [self._inputs, self._state, self._kept, self._saved_inputs, self._saved_state]

    def clear(self, rows: torch.Tensor) -> None:
        self._inputs.index_fill_(1, rows, 0)
        self._state.index_fill_(1, rows, 0)

    def save(self, row: int, slot: int) -> None:
        self._saved_inputs[:, slot].copy_(self._inputs[:, row, : self._last])
        self._saved_state[:, slot].copy_(self._state[:, row])

    def restore(self, slot: int, row: int) -> None:
        self._inputs[:, row, : self._last].copy_(self._saved_inputs[:, slot])
        self._state[:, row].copy_(self._saved_state[:, slot])


class StateMemory:
    """The last line is the dummy's, and stays empty. A snapshot is of a row that has no drafts."""

    def __init__(self, device: Device, sizes: StateSizes, room: StateRoom) -> None:
        self.num_rows = room.rows  # without the dummy
        self._device = device
        kinds = dict.fromkeys(sizes.layers)
        members = {kind: [at for at, layer in enumerate(sizes.layers) if layer == kind] for kind in kinds}
        self._alike = {kind: AlikeLayers(device, len(members[kind]), kind, sizes, room) for kind in kinds}
        by_place = {
            at: tables for kind in kinds for at, tables in zip(members[kind], self._alike[kind].tables(), strict=True)
        }
        self.layers = tuple(by_place[at] for at in range(len(sizes.layers)))

    def tensors(self) -> list[torch.Tensor]:
        return [tensor for layers in self._alike.values() for tensor in layers.tensors()]

    def copy_to(self, other: StateMemory, lines: torch.Tensor, ops: RowOps) -> None:
        """lines [n] int32. Of the same layers; it may be recorded."""
        for kind, layers in self._alike.items():
            for source, target in zip(layers.taken_in, other._alike[kind].taken_in, strict=True):
                if source[0, 0].numel():
                    ops.copy_lines(source, target, lines)

    def clear(self, rows: Sequence[int]) -> None:
        if rows and self._alike:
            index = self._device.upload(np.array(rows, dtype=np.int64))
            for layers in self._alike.values():
                layers.clear(index)

    def save(self, row: int, slot: int) -> None:
        for layers in self._alike.values():
            layers.save(row, slot)

    def restore(self, slot: int, row: int) -> None:
        for layers in self._alike.values():
            layers.restore(slot, row)

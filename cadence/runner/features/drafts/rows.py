"""How many drafts each row may be proposed for one forward, and how far a model that makes them has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadence.core.contract.drafts import DRAFTS, DraftChanges
from cadence.core.contract.step import NewRow
from cadence.core.contract.table import RequestTable
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.runner.feature import DeviceFeature
from cadence.runner.layout import BatchLayout


class DraftRows:
    """A `RequestTable` that only the host writes."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"most": "i32"})
        self.most: torch.Tensor = self._scalars.get("most")  # [num_rows] int32, strided

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, most=request.payloads.get(DRAFTS, 0))

    def remove(self, row: int) -> None:
        """Nothing is proposed for a row without a request."""

    def change(self, row: int, most: int) -> None:
        self._scalars.set(row, most=most)

    def flush(self) -> None:
        self._scalars.flush()


class DraftedRows:
    """A `RequestTable`: positions whose keys a model that drafts has. The device advances them itself. Where a row
    begins with blocks of others, these have its keys, too."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"computed": "i32"})
        self.computed: torch.Tensor = self._scalars.get("computed")  # [num_rows] int32, strided

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, computed=request.num_computed)

    def remove(self, row: int) -> None:
        """Nothing is computed for a row without a request."""

    def flush(self) -> None:
        self._scalars.flush()


class DeviceDrafts(DeviceFeature):
    """Changes how many drafts rows may have, and tells the draft model's forward which positions it lacks."""

    name = DRAFTS

    def __init__(self, rows: DraftRows, tables: Sequence[RequestTable]) -> None:
        """tables: of those that propose"""
        self.tables = [rows, *tables]
        self._rows = rows

    def apply(self, payload: DraftChanges) -> None:
        for row, most in payload.most:
            self._rows.change(row, most)

    def mark(self, layout: BatchLayout, payload: DraftChanges) -> BatchLayout:
        return replace(layout, catch_up=tuple(payload.catch_up)) if payload.catch_up else layout

"""How many drafts each row may be proposed for one forward, and how far a model that makes them has come."""

from __future__ import annotations

import torch

from cadence.core.step import NewDrafts, NewRow
from cadence.device.base import Device
from cadence.device.staged import RowScalars


class DraftRows:
    """A `RequestTable` that only the host writes."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"most": "i32"})
        self.most: torch.Tensor = self._scalars.get("most")  # [num_rows] int32, strided

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, most=request.most_drafts)

    def remove(self, row: int) -> None:
        """Nothing is proposed for a row without a request."""

    def change(self, drafts: NewDrafts) -> None:
        self._scalars.set(drafts.row, most=drafts.most)

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

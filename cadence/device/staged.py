"""Device tables written by the host: writes are staged, packed into one array, copied once, applied by one kernel."""

from __future__ import annotations

import numpy as np
import torch

from cadence.device.base import Device

_WIDTH = {"i32": 1, "f32": 1, "i64": 2}


class RowScalars:
    """Named scalars per row in one int32 table `[num_rows, width]`; floats and int64 keep their bits.

    The host mirror `get_np` is exact for rows whose scalars only the host writes.
    """

    def __init__(self, device: Device, num_rows: int, columns: dict[str, str]) -> None:
        self._device = device
        self._kinds = columns
        self._offsets: dict[str, int] = {}
        width = 0
        for name, kind in sorted(columns.items(), key=lambda item: -_WIDTH[item[1]]):  # int64 first: aligned
            self._offsets[name] = width
            width += _WIDTH[kind]
        width += width % 2  # rows stay 8-byte aligned
        self._mirror_np = np.zeros((num_rows, width), dtype=np.int32)
        self._table = torch.zeros((num_rows, width), dtype=torch.int32, device=device.torch_device)
        self._columns_np = {name: self._column_np(name) for name in columns}
        self._dirty: dict[int, None] = {}

    def set(self, row: int, **values: float) -> None:
        for name, value in values.items():
            self._columns_np[name][row] = value
        self._dirty[row] = None

    def get_np(self, name: str) -> np.ndarray:
        """[num_rows] view of the host mirror."""
        return self._columns_np[name]

    def _column_np(self, name: str) -> np.ndarray:
        kind, offset = self._kinds[name], self._offsets[name]
        if kind == "i64":
            return self._mirror_np.view(np.int64)[:, offset // 2]
        column = self._mirror_np[:, offset]
        return column.view(np.float32) if kind == "f32" else column

    def get(self, name: str) -> torch.Tensor:
        """[num_rows] strided view of the device table."""
        kind, offset = self._kinds[name], self._offsets[name]
        if kind == "i64":
            return self._table.view(torch.int64)[:, offset // 2]
        column_table = self._table.view(torch.float32) if kind == "f32" else self._table
        return column_table[:, offset]

    def flush(self) -> None:
        if not self._dirty:
            return
        rows_np = np.fromiter(self._dirty, dtype=np.int32, count=len(self._dirty))
        packed = self._device.upload(np.concatenate([rows_np[:, None], self._mirror_np[rows_np]], axis=1))
        self._table.index_put_((packed[:, 0],), packed[:, 1:])
        self._dirty.clear()


class RowLists:
    """A ragged list per row in one int32 table `[num_rows, capacity]` (token ids, block ids)."""

    def __init__(self, device: Device, num_rows: int, capacity: int) -> None:
        self._device = device
        self._capacity = capacity
        self.table = torch.zeros((num_rows, capacity), dtype=torch.int32, device=device.torch_device)
        self._firsts: list[int] = []  # of what is staged: places in the table, flat
        self._values: list[np.ndarray] = []

    def write(self, row: int, start: int, values_np: np.ndarray) -> None:
        self._firsts.append(row * self._capacity + start)
        self._values.append(values_np)

    def flush(self) -> None:
        if not self._firsts:
            return
        counts_np = np.fromiter(map(len, self._values), dtype=np.int64, count=len(self._values))
        shifts_np = np.array(self._firsts, dtype=np.int64) - (np.cumsum(counts_np) - counts_np)
        packed_np = np.empty((2, int(counts_np.sum())), dtype=np.int64)
        packed_np[0] = np.arange(packed_np.shape[1]) + np.repeat(shifts_np, counts_np)
        np.concatenate(self._values, out=packed_np[1])
        packed = self._device.upload(packed_np)
        self.table.view(-1).index_put_((packed[0],), packed[1].to(torch.int32))
        self._firsts.clear()
        self._values.clear()

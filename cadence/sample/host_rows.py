"""What rows ask of a step, kept on the host and uploaded for the rows of a step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

import numpy as np

from cadence.core.contract.step import NewRow
from cadence.device.base import Device

Kept = TypeVar("Kept")  # of a row
Uploaded = TypeVar("Uploaded")  # of the rows of a step


class HostRows(ABC, Generic[Kept, Uploaded]):
    """A `RequestTable`, and a `LogitsStep` but for `apply`. What a step needs is uploaded when it changes, so a batch
    that goes on decoding uploads nothing. Costs no device memory for rows that ask nothing."""

    def __init__(self, device: Device, num_rows: int) -> None:
        self.device = device
        self.used_np = np.zeros(num_rows, dtype=np.bool_)  # rows that ask something
        self._kept: dict[int, Kept] = {}
        self._rows_np: np.ndarray | None = None  # what _uploaded was made for; None = make it anew
        self._uploaded: Uploaded

    @abstractmethod
    def wanted(self, request: NewRow) -> Kept | None:
        """None: nothing."""

    @abstractmethod
    def upload(self, found: list[tuple[int, Kept]], num_lines: int) -> Uploaded:
        """found: of the lines of a step, those whose rows ask, and what; at least one"""

    def add(self, row: int, request: NewRow) -> None:
        self.remove(row)
        kept = self.wanted(request)
        if kept is not None:
            self._kept[row] = kept
            self.used_np[row] = True
            self._rows_np = None

    def remove(self, row: int) -> None:
        if self._kept.pop(row, None) is not None:
            self.used_np[row] = False
            self._rows_np = None

    def flush(self) -> None:
        """What a step needs is uploaded with it."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self.used_np[rows_np].any())

    def gather(self, rows_np: np.ndarray) -> Uploaded:
        """Of the rows of the step's lines, among which is an active one."""
        if self._rows_np is None or not np.array_equal(rows_np, self._rows_np):
            found = [(line, self._kept[row]) for line, row in enumerate(rows_np.tolist()) if row in self._kept]
            self._uploaded = self.upload(found, len(rows_np))
            self._rows_np = rows_np.copy()
        return self._uploaded

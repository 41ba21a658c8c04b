"""Short lists of token ids per row, laid out flat for the rows of a step."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.device.base import Device

PAD = -1
NO_ENTRIES_NP = np.zeros((0, 1), dtype=np.int64)


class TokenLists:
    """A `RequestTable`, and a `LogitsStep` but for `apply`: entries of integers per row, kept on the host. What a step
    needs of them is uploaded when it changes, so a batch that goes on decoding uploads nothing. Costs no device memory
    for rows without entries. A subclass says what the entries of a request are, and what they do to logits.
    """

    def __init__(self, device: Device, num_rows: int) -> None:
        self._device = device
        self._entries: dict[int, np.ndarray] = {}  # row -> [n, columns] int64
        self.used_np = np.zeros(num_rows, dtype=np.bool_)  # rows with entries
        self._rows_np: np.ndarray | None = None  # what _flat was built for; None = rebuild
        self._flat = torch.zeros((0, 2), dtype=torch.int64, device=device.torch_device)

    def entries(self, request: NewRow) -> np.ndarray:
        """[n, columns], n = 0 of a request that lists nothing."""
        raise NotImplementedError

    def add(self, row: int, request: NewRow) -> None:
        self.remove(row)
        entries_np = self.entries(request)
        if len(entries_np):
            self._entries[row] = entries_np.astype(np.int64)
            self.used_np[row] = True
            self._rows_np = None

    def remove(self, row: int) -> None:
        if self._entries.pop(row, None) is not None:
            self.used_np[row] = False
            self._rows_np = None

    def flush(self) -> None:
        """The lists are uploaded with the step that needs them."""

    def active(self, rows_np: np.ndarray) -> bool:
        return bool(self.used_np[rows_np].any())

    def gather(self, rows_np: np.ndarray) -> torch.Tensor:
        """[N, 1 + columns] int64 on the device: the line, then the entry, padded with PAD to the widest."""
        if self._rows_np is None or not np.array_equal(rows_np, self._rows_np):
            self._flat = self._device.upload(self._flatten(rows_np))
            self._rows_np = rows_np.copy()
        return self._flat

    def _flatten(self, rows_np: np.ndarray) -> np.ndarray:
        found = [(line, self._entries[row]) for line, row in enumerate(rows_np.tolist()) if row in self._entries]
        width = max(entries_np.shape[1] for _, entries_np in found)
        flat_np = np.full((sum(len(entries_np) for _, entries_np in found), 1 + width), PAD, dtype=np.int64)
        start = 0
        for line, entries_np in found:
            end = start + len(entries_np)
            flat_np[start:end, 0] = line
            flat_np[start:end, 1 : 1 + entries_np.shape[1]] = entries_np
            start = end
        return flat_np

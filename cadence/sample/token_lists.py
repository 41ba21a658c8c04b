"""Short lists of token ids per row, laid out flat for the rows of a step."""

from __future__ import annotations

from abc import abstractmethod

import numpy as np
import torch

from cadence.core.contract.step import NewRow
from cadence.sample.host_rows import HostRows

PAD = -1
NO_ENTRIES_NP = np.zeros((0, 1), dtype=np.int64)


class TokenLists(HostRows[np.ndarray, torch.Tensor]):
    """Entries of integers per row, [n, columns] int64. `gather` gives [N, 1 + columns] int64 on the device: the line,
    then the entry, padded with PAD to the widest. A subclass says what the entries of a request are, and what they do
    to logits."""

    @abstractmethod
    def entries(self, request: NewRow) -> np.ndarray:
        """[n, columns], n = 0 of a request that lists nothing."""

    def wanted(self, request: NewRow) -> np.ndarray | None:
        entries_np = self.entries(request)
        return entries_np.astype(np.int64) if len(entries_np) else None

    def upload(self, found: list[tuple[int, np.ndarray]], num_lines: int) -> torch.Tensor:
        width = max(entries_np.shape[1] for _, entries_np in found)
        flat_np = np.full((sum(len(entries_np) for _, entries_np in found), 1 + width), PAD, dtype=np.int64)
        start = 0
        for line, entries_np in found:
            end = start + len(entries_np)
            flat_np[start:end, 0] = line
            flat_np[start:end, 1 : 1 + entries_np.shape[1]] = entries_np
            start = end
        return self.device.upload(flat_np)

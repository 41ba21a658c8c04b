"""Block tables: for every row and KV group, which block holds which tokens."""

from __future__ import annotations

import numpy as np
import torch

from cadence.core.contract.step import NewBlocks, NewRow
from cadence.device.base import Device
from cadence.device.staged import RowLists


class BlockTables:
    def __init__(self, device: Device, num_rows: int, max_blocks: int, num_groups: int) -> None:
        self._groups = [RowLists(device, num_rows, max_blocks) for _ in range(num_groups)]

    @property
    def tables(self) -> tuple[torch.Tensor, ...]:
        """Per group [num_rows, max_blocks] int32."""
        return tuple(group.table for group in self._groups)

    def add(self, row: int, request: NewRow) -> None:
        for group, block_ids in zip(self._groups, request.block_ids, strict=True):
            group.write(row, 0, np.asarray(block_ids, dtype=np.int32))

    def remove(self, row: int) -> None:
        """Nothing to give back: entries beyond a row's length are never read."""

    def append(self, blocks: NewBlocks) -> None:
        self._groups[blocks.group].write(blocks.row, blocks.start, np.asarray(blocks.block_ids, dtype=np.int32))

    def flush(self) -> None:
        for group in self._groups:
            group.flush()

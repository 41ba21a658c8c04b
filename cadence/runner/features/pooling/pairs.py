"""Rows whose prompts have two texts: which of them each token of a forward belongs to."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.contract.step import NewRow
from cadence.core.pooled.pooling import POOLING, PoolingSpec
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.token_types import TwoTexts
from cadence.runner.layout import BatchLayout

_NEVER = 2**31 - 1  # a position that no token has


class PairRows:
    """A `RequestTable` and an `InputHook`. A row without a second text has it after all of its tokens."""

    name = POOLING

    def __init__(self, device: Device, num_rows: int) -> None:
        self._scalars = RowScalars(device, num_rows, {"second_from": "i32"})
        for row in range(num_rows):
            self._scalars.set(row, second_from=_NEVER)
        self._second_from = self._scalars.get("second_from")  # [num_rows] int32, strided
        self._second_from_np = self._scalars.get_np("second_from")

    def add(self, row: int, request: NewRow) -> None:
        spec: PoolingSpec | None = request.payloads.get(POOLING)
        if spec is not None and spec.second_from:
            self._scalars.set(row, second_from=spec.second_from)

    def remove(self, row: int) -> None:
        if self._second_from_np[row] != _NEVER:
            self._scalars.set(row, second_from=_NEVER)

    def flush(self) -> None:
        self._scalars.flush()

    def joins(self, layout: BatchLayout) -> bool:
        return bool((self._second_from_np[layout.rows_np] != _NEVER).any())

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        counts = batch.query_start.diff()
        first = self._second_from[batch.rows].repeat_interleave(counts, output_size=batch.ids.shape[0])
        return replace(ctx, token_types=TwoTexts((batch.positions >= first).to(torch.int64)))

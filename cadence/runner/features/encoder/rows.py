"""How many positions of its encoder's output every row sees, on the device."""

from __future__ import annotations

from dataclasses import replace

import torch

from cadence.core.contract.step import NewRow
from cadence.core.inputs.encoder_input import ENCODER
from cadence.device.base import Device
from cadence.device.staged import RowScalars
from cadence.kernels.interface.ops import Ops
from cadence.kernels.interface.row_ops import StepBatch
from cadence.models.interface.encoder_lengths import EncoderLengths
from cadence.models.interface.model import ForwardContext
from cadence.models.interface.wanted import LastTokens, Wanted
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes

_LEAST = 1  # of a row that has no content, the dummy among them: no attention is over nothing


class EncoderRows:
    """A `RequestTable` and an `InputHook`, of every forward: all rows of a model with an encoder have a content."""

    name = ENCODER

    def __init__(self, device: Device, num_rows: int, ops: Ops, shapes: Shapes) -> None:
        self._ops = ops.lora
        self._scalars = RowScalars(device, num_rows, {"length": "i32"})
        for row in range(num_rows):
            self.remove(row)
        self._scalars.flush()
        self._lengths = self._scalars.get("length")  # [num_rows] int32, strided

        def column(size: int) -> torch.Tensor:
            return torch.full((size,), _LEAST, dtype=torch.int32, device=device.torch_device)

        most = max(shapes.most_rows, shapes.most_lines, 1)
        self._sequences, self._wanted = column(most), column(most)
        self._each = torch.arange(most + 1, dtype=torch.int32, device=device.torch_device)  # a constant

    def add(self, row: int, request: NewRow) -> None:
        self._scalars.set(row, length=request.payloads.get(ENCODER, _LEAST))

    def remove(self, row: int) -> None:
        self._scalars.set(row, length=_LEAST)

    def flush(self) -> None:
        self._scalars.flush()

    def joins(self, layout: BatchLayout) -> bool:
        return True

    def extend(self, ctx: ForwardContext, batch: StepBatch) -> ForwardContext:
        return replace(ctx, encoder=self._found(batch, ctx.wanted))

    def _found(self, batch: StepBatch, wanted: Wanted) -> EncoderLengths:
        sequences = self._of_rows(batch.rows, self._sequences)
        if not isinstance(wanted, LastTokens):
            return EncoderLengths(sequences, sequences)
        return EncoderLengths(sequences, self._of_rows(wanted.rows, self._wanted))

    def _of_rows(self, rows: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        """rows [n] int32 -> the length of each, in `out`"""
        count = rows.shape[0]
        self._ops.token_slots(self._lengths, rows, self._each[: count + 1], out[:count])
        return out[:count]

"""The buffers on the device that the batch of every forward is read from."""

from __future__ import annotations

import numpy as np
import torch

from cadence.device.base import Device
from cadence.kernels.interface.attention_batch import LongRun
from cadence.kernels.interface.row_ops import StepBatch
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes, StepShape


class StepBuffers:
    """Where the batch of every forward lies: its leading part, as long as the forward needs."""

    def __init__(self, device: Device, most: Shapes, num_groups: int, quiet_row: int, spare: int = 0) -> None:
        """most: how large a forward may be, but for `spare` tokens more. quiet_row: what padding names"""
        most_rows, most_tokens, most_lines = most.most_rows, most.most_tokens + spare, most.most_lines
        self._device = device
        self._quiet_row = quiet_row
        width = -(-(most_rows + 1) // 16) * 16  # so that each begins where wide loads may

        def zeros(shape: int | tuple[int, int], dtype: torch.dtype = torch.int32) -> torch.Tensor:
            return torch.zeros(shape, dtype=dtype, device=device.torch_device)

        self._named = zeros((3, width))  # rows, query_start, line_start
        self._ids = zeros(most_tokens)
        self._positions = zeros(most_tokens, torch.int64)
        self._slots = tuple(zeros(most_tokens, torch.int64) for _ in range(num_groups))
        self._seq_lens = zeros(most_rows)
        self._line_at = zeros(most_lines, torch.int64)
        self._line_rows = zeros(most_lines)
        self._line_lengths = zeros(most_lines)
        self._long_runs: tuple[LongRun, ...] = ()  # of what was named last
        self._named_np: np.ndarray = np.zeros((3, 0), dtype=np.int32)  # what the device holds by now

    def name(self, layout: BatchLayout, shape: StepShape, long_runs: tuple[LongRun, ...] = ()) -> None:
        """What is in the layout is what the next forward of this shape computes; all else in the shape is padding."""
        self._long_runs = long_runs
        count, padded = layout.num_rows, shape.num_rows
        assert count <= padded <= len(self._seq_lens) and layout.num_tokens <= shape.num_tokens <= len(self._ids)
        named_np = np.empty((3, padded + 1), dtype=np.int32)
        named_np[0, :count] = layout.rows_np
        named_np[0, count:] = self._quiet_row
        if shape.is_even_as(layout):  # and so is the padding
            each_np = np.arange(padded + 1, dtype=np.int32)
            named_np[1], named_np[2] = each_np * (shape.num_tokens // padded), each_np * (shape.num_lines // padded)
        else:
            for line_np, start_np in zip(named_np[1:], (layout.query_start_np, layout.line_start_np), strict=True):
                line_np[: count + 1] = start_np
                line_np[count + 1 :] = start_np[-1]
        if not np.array_equal(named_np, self._named_np):
            self._named[:, : padded + 1].copy_(self._device.upload(named_np))
            self._named_np = named_np

    def named(self, layout: BatchLayout, shape: StepShape) -> StepBatch:
        self.name(layout, shape)
        return self.batch(shape)

    def batch(self, shape: StepShape) -> StepBatch:
        """All of a shape, padding included."""
        rows, tokens, lines = shape.num_rows, shape.num_tokens, shape.num_lines
        return StepBatch(
            rows=self._named[0, :rows],
            query_start=self._named[1, : rows + 1],
            line_start=self._named[2, : rows + 1],
            ids=self._ids[:tokens],
            positions=self._positions[:tokens],
            slots=tuple(slots[:tokens] for slots in self._slots),
            seq_lens=self._seq_lens[:rows],
            line_at=self._line_at[:lines],
            line_rows=self._line_rows[:lines],
            line_lengths=self._line_lengths[:lines],
            num_single=shape.num_single,
            max_query_len=shape.max_query_len,
            long_runs=self._long_runs,
        )

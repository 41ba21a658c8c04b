"""Positions with axes, in C."""

from __future__ import annotations

import torch

from cadence.kernels.cpu.runtime.library import CpuLibrary
from cadence.kernels.interface.rope_ops import AxesTable, RopeSegments
from cadence.kernels.interface.row_ops import StepBatch


class CpuRopeOps:
    def __init__(self, library: CpuLibrary) -> None:
        self._c = library

    def turns(self, segments: RopeSegments, batch: StepBatch, table: AxesTable, out: torch.Tensor) -> None:
        self._c.rope_turns(
            out=out, cos_sin=table.cos_sin, axis_of=table.axis_of, segments=segments.lines, counts=segments.counts,
            rows=batch.rows, query_start=batch.query_start, positions=batch.positions,
            segment_stride=segments.lines.stride(0), count_stride=segments.counts.stride(0),
            num_rows=batch.rows.shape[0], num_tokens=batch.ids.shape[0], length=table.cos_sin.shape[0],
            half=table.axis_of.shape[0],
        )  # fmt: skip

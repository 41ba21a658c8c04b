"""Positions with axes, in plain torch."""

from __future__ import annotations

import torch

from cadence.kernels.interface.rope_ops import AxesTable, RopeSegments
from cadence.kernels.interface.row_ops import StepBatch


class ReferenceRopeOps:
    def turns(self, segments: RopeSegments, batch: StepBatch, table: AxesTable, out: torch.Tensor) -> None:
        axes = torch.zeros((batch.ids.shape[0], 3), dtype=torch.int64)
        starts = batch.query_start.tolist()
        for row, begin, end in zip(batch.rows.tolist(), starts, starts[1:], strict=False):
            lines = segments.lines[row, : int(segments.counts[row])].tolist()
            for token, position in enumerate(batch.positions[begin:end].tolist(), begin):
                axes[token] = torch.tensor(_axes(position, lines))
        at = axes.clamp(0, table.cos_sin.shape[0] - 1).to(out.device)[:, table.axis_of.long()]  # [T, rotary_dim / 2]
        out.copy_(table.cos_sin.gather(0, torch.cat([at, at], dim=1)))


def _axes(position: int, lines: list[list[int]]) -> tuple[int, int, int]:
    first, t, h, w, width = next((line for line in reversed(lines) if line[0] <= position), (0, 0, 0, 0, 0))
    i = position - first
    return (t, h + i // width, w + i % width) if width else (t + i, h + i, w + i)

"""A device that computes while the host waits: a CPU. Its memory is the host's, which looks at it between two runs.

A decode of one forward takes turns: `RowOps.turn`, recorded after its commit, has the recording start over, until a row
ends or has drafts, or as many forwards are done as may come back at once.
"""

from __future__ import annotations

import torch

from cadence.core.contract.step import IntArray
from cadence.kernels.interface.row_ops import RowOps, StepBatch, Turns
from cadence.runner.driver import RunShape
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import Shapes, StepShape
from cadence.runner.state.requests import RequestRows

_MOST_TURNS = 32  # of one run


class TurnsDriver:
    """A launch is as many runs, of shapes as long as the rows' drafts, as may come back at once."""

    def __init__(self, tokens: torch.Tensor, ops: RowOps, requests: RequestRows, shapes: Shapes) -> None:
        self.tokens = tokens
        most_turns = max(_MOST_TURNS, shapes.most_forwards)
        self.log = torch.zeros((most_turns, shapes.most_lines), dtype=torch.int32)
        self._turns = Turns(torch.zeros(4, dtype=torch.int32), self.log)
        self._ops = ops
        self._requests = requests
        self._pads = shapes.pads

    def trim_missing_drafts(self, layout: BatchLayout) -> BatchLayout:
        if layout.width == 1 or self._pads:
            return layout
        return layout.without_padding(self._requests.num_drafts(layout.sampling_np))

    def num_quiet(self, rows_np: IntArray) -> int:
        return self._requests.num_quiet(rows_np)

    def run(self, shape: StepShape, most: int, num_quiet: int, run_shape: RunShape) -> int:
        self._turns.begin(min(most, _MOST_TURNS) if shape.num_forwards == 1 else shape.num_forwards, num_quiet)
        run_shape(shape)
        return self._turns.done

    def end_forward(self, batch: StepBatch, out: torch.Tensor) -> None:
        self._ops.turn(self._requests.state, batch, out, self._turns)

    def goes_on(self, rows_np: IntArray, num_quiet: int) -> bool:
        return self._requests.num_quiet(rows_np) <= num_quiet

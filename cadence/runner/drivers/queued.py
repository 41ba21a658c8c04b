"""A device that queues work: a GPU. The host never waits, and sees nothing of what the device holds."""

from __future__ import annotations

import torch

from cadence.core.contract.step import IntArray
from cadence.kernels.interface.row_ops import StepBatch
from cadence.runner.driver import RunShape
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import StepShape


class QueuedDriver:
    """A launch is one run of one shape."""

    def __init__(self, tokens: torch.Tensor) -> None:
        self.tokens = self.log = tokens

    def trim_missing_drafts(self, layout: BatchLayout) -> BatchLayout:
        return layout

    def num_quiet(self, rows_np: IntArray) -> int:
        return 0

    def run(self, shape: StepShape, most: int, num_quiet: int, run_shape: RunShape) -> int:
        run_shape(shape)
        return shape.num_forwards

    def end_forward(self, batch: StepBatch, out: torch.Tensor) -> None:
        """The tokens stay where they were committed."""

    def goes_on(self, rows_np: IntArray, num_quiet: int) -> bool:
        return False

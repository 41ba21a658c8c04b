"""What the step loop knows of a device beyond its ops: whether the host waits for it, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from cadence.core.contract.step import IntArray
from cadence.kernels.interface.row_ops import StepBatch
from cadence.runner.layout import BatchLayout
from cadence.runner.shapes import StepShape

RunShape = Callable[[StepShape], object]  # runs all forwards of a shape, which was named


class ForwardDriver(Protocol):
    tokens: torch.Tensor  # [forwards of a shape, lines] int32: where each forward commits
    log: torch.Tensor  # [forwards, lines] int32: what the decodes of the last `run` committed

    def trim_missing_drafts(self, layout: BatchLayout) -> BatchLayout:
        """Without room for drafts that its rows do not have, where the host can see how many they have."""
        ...

    def num_quiet(self, rows_np: IntArray) -> int:
        """Of those rows, where the host can see it."""
        ...

    def run(self, shape: StepShape, most: int, num_quiet: int, run_shape: RunShape) -> int:
        """Runs a shape of decodes that ends with tokens, which then lie in `log` -> forwards done. A shape of one
        forward may be done up to `most` times, as long as no row has drafts and `num_quiet` rows are quiet."""
        ...

    def end_forward(self, batch: StepBatch, out: torch.Tensor) -> None:
        """After the commit of a forward of decodes, in `run`. out [L] int32: of `tokens`. It may be recorded."""
        ...

    def goes_on(self, rows_np: IntArray, num_quiet: int) -> bool:
        """Whether the same launch may run another shape of these rows, of which so many were quiet at its start."""
        ...

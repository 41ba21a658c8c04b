"""A weight that remembers what it was multiplied by, for calibration."""

from __future__ import annotations

import torch

from cadence.models.interface.model import ForwardContext
from cadence.models.layers.weight import Weight


class ObservedWeight(Weight):
    """Around another, whose products it gives. Norms and gates are computed outside of it: it sees every input."""

    def __init__(self, inner: Weight) -> None:
        self._inner = inner
        self.rows, self.cols = inner.rows, inner.cols
        self.hessian = torch.zeros((inner.cols, inner.cols))  # sum over tokens of x^T x, [cols, cols] float32

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        wide = x.float()
        self.hessian.addmm_(wide.t(), wide)
        return self._inner.linear(x, bias, ctx)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self._inner.logits(x, ctx)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        return self._inner.lookup(ids, scale, ctx)

"""Weights and experts that remember what they were multiplied by, for calibration."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cadence.kernels.interface.expert_ops import Routes
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.experts import DenseExperts
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


class ObservedExperts:
    """An `ExpertProduct` around experts that are tensors, whose products it gives. Of each expert that got a token, the
    sums over its tokens of x^T x, float32: of what enters gate and up, and of what enters down."""

    def __init__(self, inner: DenseExperts) -> None:
        self.inner = inner
        self.hessians: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # [hidden, hidden], [width, width]

    def product(self, x: torch.Tensor, routes: Routes, gelu: bool, ctx: ForwardContext) -> torch.Tensor:
        for index, gate_up in enumerate(self.inner.stack.gate_up):
            own = x[(routes[0] == self.inner.stack.first + index).any(dim=1)].float()
            if len(own):
                self._add(index, own, F.linear(own, gate_up.float()), gelu)
        return self.inner.product(x, routes, gelu, ctx)

    def _add(self, index: int, entering: torch.Tensor, both: torch.Tensor, gelu: bool) -> None:
        """entering [n, hidden], both [n, 2 * width]: what gate and up make of it"""
        gate, up = both.chunk(2, dim=-1)
        inner = (F.gelu(gate, approximate="tanh") if gelu else F.silu(gate)) * up
        if index not in self.hessians:
            sizes = entering.shape[1], inner.shape[1]
            self.hessians[index] = (torch.zeros(sizes[0], sizes[0]), torch.zeros(sizes[1], sizes[1]))
        for total, rows in zip(self.hessians[index], (entering, inner), strict=True):
            total.addmm_(rows.t(), rows)

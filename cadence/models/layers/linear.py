"""Linear maps, several of one input stored as one weight; and the gate between two of them."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from cadence.models.build import BuildContext
from cadence.models.layers.parameter import empty_matrix, empty_parameter


class Linear(nn.Module):
    """x [T, in] -> [T, out]. `out` is a size, or named sizes stacked in one weight: {"q": 64, "k": 16, "v": 16}."""

    weight: nn.Parameter  # [sum of out, in]; the loader may put a packed weight in its place
    bias: nn.Parameter | None  # [sum of out]

    def __init__(
        self, build: BuildContext, in_features: int, out: int | Mapping[str, int], *, bias: bool = False
    ) -> None:
        super().__init__()
        self.parts: dict[str, int] = {} if isinstance(out, int) else dict(out)  # rows of each part; {} = not divided
        rows = out if isinstance(out, int) else sum(out.values())
        self.weight = empty_matrix(build, rows, in_features)
        self.bias = empty_parameter(build, rows, dtype=build.bias_dtype) if bias else None
        self._ops = build.ops
        self._map = build.ops.linear

    def part_rows(self, part: str) -> slice:
        """Rows of one part in weight and bias."""
        start = 0
        for name, rows in self.parts.items():
            if name == part:
                return slice(start, start + rows)
            start += rows
        raise KeyError(part)

    def leave_terms(self) -> None:
        """From now on what it gives may be terms, for an RMS norm to add up: [P, T, out]."""
        self._map = self._ops.linear_terms

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._map(x, self.weight, self.bias)


class Gate(nn.Module):
    """x [T, 2 * I] = (gate, up) -> act(gate) * up, [T, I]; act is gelu_tanh or silu."""

    def __init__(self, build: BuildContext, gelu: bool) -> None:
        super().__init__()
        self.gelu = gelu
        self._act = build.ops.gelu_tanh_mul if gelu else build.ops.silu_mul

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._act(x)

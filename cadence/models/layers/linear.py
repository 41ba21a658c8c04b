"""Linear maps, several of one input stored as one weight; and the gate between two of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.parameter import empty_parameter, empty_weight
from cadence.models.layers.rank_share import Held, all_of
from cadence.models.layers.weight import RMSScale, Stream, WeightHolder


class Linear(WeightHolder):
    """x [T, in] -> [T, out]. `out` is a size, or named sizes stacked in one weight: {"q": 64, "k": 16, "v": 16}."""

    bias: nn.Parameter | None  # [sum of out]

    def __init__(
        self, build: BuildContext, in_features: int, out: int | Mapping[str, int], *, bias: bool = False
    ) -> None:
        rows = out if isinstance(out, int) else sum(out.values())
        super().__init__(empty_weight(build, rows, in_features), all_of(out, in_features))
        self.parts: dict[str, int] = {} if isinstance(out, int) else dict(out)  # rows of each part; {} = not divided
        self.bias = empty_parameter(build, rows, dtype=build.bias_dtype) if bias else None

    @classmethod
    def shared(cls, build: BuildContext, held: Held, *, bias: bool = False) -> Self:
        """What this rank has of a map that ranks share."""
        own = held.own_rows
        linear = cls(build, len(held.columns[1]), own.get("", own), bias=bias)
        linear.held = held
        return linear

    def part_rows(self, part: str) -> slice:
        """Rows of one part in weight and bias, or of several that lie side by side: "q+k"."""
        first, *more = part.split("+")
        names = list(self.parts)
        at = names.index(first)
        start = sum(self.parts[name] for name in names[:at])
        return slice(start, start + sum(self.parts[name] for name in (first, *more)))

    def forward(self, x: torch.Tensor, ctx: ForwardContext, *, terms: bool = False) -> torch.Tensor:
        """terms: an RMS norm comes next, and may get [P, T, out] to add up."""
        product = self.weight.linear_terms if terms else self.weight.linear
        return product(x, self.bias, ctx)

    def after_norm(self, stream: Stream, norm: RMSScale, ctx: ForwardContext) -> Stream:
        """stream = (x, residual) -> (of rms_norm(x + residual), x + residual)"""
        return self.weight.after_norm(stream, norm, self.bias, ctx)

    def gated_after_norm(self, stream: Stream, norm: RMSScale, gelu: bool, ctx: ForwardContext) -> Stream:
        """The same with a `Gate` after it."""
        return self.weight.gated_after_norm(stream, norm, self.bias, gelu, ctx)


class NoLinear(nn.Module):
    """Where a family has no projection at a place that others have one."""

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return x


class Gate(nn.Module):
    """x [T, 2 * I] = (gate, up) -> act(gate) * up, [T, I]; act is gelu_tanh or silu."""

    def __init__(self, gelu: bool) -> None:
        super().__init__()
        self.gelu = gelu

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.gelu_tanh_mul(x) if self.gelu else ctx.ops.silu_mul(x)

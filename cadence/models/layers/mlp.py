"""Feed-forward blocks.

`block(x, ctx)`, or `block.after(norm, x, residual, ctx)`: of norm(x + residual), with that sum.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.ops import Activation
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.linear import Gate, Linear
from cadence.models.layers.norm import Norm
from cadence.models.layers.rank_share import Held, inner_part
from cadence.models.layers.weight import Stream

_Value = TypeVar("_Value")

_PLAIN = {
    "relu": Activation.RELU,
    "silu": Activation.SILU,
    "swish": Activation.SILU,
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_fast": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
}

_GATED_GELU = {
    "silu": False,
    "swish": False,
    "gelu_new": True,
    "gelu_fast": True,
    "gelu_pytorch_tanh": True,
}  # activations of gated blocks: gelu_tanh or silu


class GatedMLP(nn.Module):
    """down(act(gate(x)) * up(x))"""

    def __init__(
        self, build: BuildContext, hidden: int, intermediate: int, activation: str, *, bias: bool = False
    ) -> None:
        super().__init__()
        inner, every = (intermediate, inner_part(intermediate, build.ranks)), (hidden, range(hidden))
        self.gate_up = Linear.shared(build, Held({"gate": inner, "up": inner}, every), bias=bias)
        self.down = Linear.shared(build, Held({"": every}, inner), bias=bias)
        self._gate = Gate(gates_by_gelu(activation))

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.down(self._gate(self.gate_up(x, ctx), ctx), ctx)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        """terms: as `Linear` has it, of what comes out."""
        if self.down.weight.takes_gate(residual.shape[0]):
            inner, residual = norm.add_linear(x, residual, self.gate_up, ctx)
            return self.down.weight.gated(inner, self.down.bias, self._gate.gelu, ctx, terms=terms), residual
        inner, residual = norm.add_gated(x, residual, self.gate_up, self._gate, ctx)
        return self.down(inner, ctx, terms=terms), residual


class ExactGeluMLP(nn.Module):
    """down(gelu(gate(x)) * up(x)), with the gelu that `GatedMLP` has an approximation of."""

    def __init__(self, build: BuildContext, hidden: int, intermediate: int, *, bias: bool = False) -> None:
        super().__init__()
        inner, every = (intermediate, inner_part(intermediate, build.ranks)), (hidden, range(hidden))
        self.gate_up = Linear.shared(build, Held({"gate": inner, "up": inner}, every), bias=bias)
        self.down = Linear.shared(build, Held({"": every}, inner), bias=bias)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.down(self._gated(self.gate_up(x, ctx), ctx), ctx)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        """terms: as `Linear` has it, of what comes out."""
        inner, residual = norm.add_linear(x, residual, self.gate_up, ctx)
        return self.down(self._gated(inner, ctx), ctx, terms=terms), residual

    def _gated(self, inner: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """inner [T, 2 * I] = (gate, up) -> [T, I]"""
        gate, up = inner.chunk(2, dim=1)
        return ctx.ops.activate(gate.contiguous(), Activation.GELU) * up


class PlainMLP(nn.Module):
    """down(act(up(x)))"""

    def __init__(
        self, build: BuildContext, hidden: int, intermediate: int, activation: str, *, bias: bool = True, out: int = 0
    ) -> None:
        """out: entries of what comes out; 0 = as many as go in"""
        super().__init__()
        inner, every = (intermediate, inner_part(intermediate, build.ranks)), (hidden, range(hidden))
        self.up = Linear.shared(build, Held({"": inner}, every), bias=bias)
        self.down = Linear.shared(build, Held({"": (out or hidden, range(out or hidden))}, inner), bias=bias)
        self._act = _known(_PLAIN, activation)

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.down(ctx.ops.activate(self.up(x, ctx), self._act), ctx)

    def after(
        self, norm: Norm, x: torch.Tensor, residual: torch.Tensor, ctx: ForwardContext, *, terms: bool = False
    ) -> Stream:
        inner, residual = norm.add_linear(x, residual, self.up, ctx)
        return self.down(ctx.ops.activate(inner, self._act), ctx, terms=terms), residual


def gates_by_gelu(activation: str) -> bool:
    """Of a gated block: gelu_tanh, or silu."""
    return _known(_GATED_GELU, activation)


def _known(table: dict[str, _Value], activation: str) -> _Value:
    if activation not in table:
        raise ConfigError(f"activation {activation!r} is not one of {sorted(table)}", field="hidden_act")
    return table[activation]

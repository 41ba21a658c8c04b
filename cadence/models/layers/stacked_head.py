"""Heads that make scores or embeddings of hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from cadence.kernels.interface.ops import Activation
from cadence.models.interface.build import BuildContext
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.linear import Linear

_OPS = {"gelu": Activation.GELU, "relu": Activation.RELU}


@dataclass(frozen=True, slots=True)
class MapShape:
    inputs: int
    outputs: int
    bias: bool
    activation: str = "identity"  # after it: identity | tanh | gelu | relu


class HeadMap(Linear):
    """A linear map outside the layers: of few rows, and where adapters have no place."""

    inner = False


class StackedHead(nn.Module):
    """A `PoolHead`: linear maps one after the other, each with an activation. Every rank has all of it."""

    def __init__(self, build: BuildContext, shapes: Sequence[MapShape]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(HeadMap(build, shape.inputs, shape.outputs, bias=shape.bias) for shape in shapes)
        self._activations = [shape.activation for shape in shapes]

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [n, inputs of the first] -> [n, outputs of the last]"""
        for each, activation in zip(self.maps, self._activations, strict=True):
            x = _activated(each(x, ctx), activation, ctx)
        return x


def _activated(x: torch.Tensor, activation: str, ctx: ForwardContext) -> torch.Tensor:
    if activation == "tanh":
        return ctx.ops.softcap(x, 1.0).to(x.dtype)
    return x if activation == "identity" else ctx.ops.activate(x, _OPS[activation])

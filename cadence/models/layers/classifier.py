"""Heads that make scores of pooled hidden states."""

from __future__ import annotations

import torch
from torch import nn

from cadence.core.errors import ConfigError
from cadence.kernels.interface.ops import Activation
from cadence.models.interface.build import BuildContext, ConfigView
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.linear import Linear, NoLinear
from cadence.models.layers.norm import NoNorm, Norm

_MOST_LABELS = 1 << 16


class Tanh(nn.Module):
    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.softcap(x, 1.0).to(x.dtype)


class Activated(nn.Module):
    def __init__(self, kind: Activation) -> None:
        super().__init__()
        self._kind = kind

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.activate(x, self._kind)


class Classifier(nn.Module):
    """A `PoolHead`: out(norm(activation(dense(x)))), [n, hidden] -> [n, labels]."""

    def __init__(
        self, dense: Linear | NoLinear, activation: Tanh | Activated | NoLinear, out: Linear, norm: Norm | None = None
    ) -> None:
        super().__init__()
        self.dense, self.activation, self.out = dense, activation, out
        self.norm = norm or NoNorm()

    def forward(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        x = self.activation(self.dense(x, ctx), ctx)
        return self.out(self.norm(x, ctx), ctx)


def dense_classifier(hf: ConfigView, build: BuildContext, hidden: int, activation: Tanh | Activated) -> Classifier:
    """Of a text: its vector goes through a layer of its own first."""
    dense = Linear(build, hidden, hidden, bias=True)
    return Classifier(dense, activation, Linear(build, hidden, num_labels(hf), bias=True))


def plain_classifier(hf: ConfigView, build: BuildContext, hidden: int) -> Classifier:
    """Of tokens."""
    return Classifier(NoLinear(), NoLinear(), Linear(build, hidden, num_labels(hf), bias=True))


def num_labels(hf: ConfigView) -> int:
    """Files name the labels, unless these are two without names."""
    labels = hf.get("id2label")
    count = len(labels) if isinstance(labels, dict) and labels else hf.get("num_labels") or 2
    if not isinstance(count, int) or not 1 <= count <= _MOST_LABELS:
        raise ConfigError(f"num_labels must be a number from 1 to {_MOST_LABELS}, found {count!r}", field="num_labels")
    return count

"""Activations in the places of transformers', where a trial on random numbers shows that ours compute the same."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cadence.kernels.interface.ops import Activation
from cadence.models.through_transformers.current import CurrentForward, as_rows

_WAYS = {
    Activation.RELU: F.relu,
    Activation.SILU: F.silu,
    Activation.GELU: F.gelu,
    Activation.GELU_TANH: lambda x: F.gelu(x, approximate="tanh"),
}


class CalledActivation(nn.Module):
    def __init__(self, kind: Activation, now: CurrentForward) -> None:
        super().__init__()
        self.kind = kind
        self.now = now

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.now.runs:  # a trial, or a rehearsal
            return torch.empty_like(x) if x.is_meta else _WAYS[self.kind](x)
        rows = as_rows(x)
        return self.now.ctx.ops.activate(rows.contiguous(), self.kind).view(x.shape)


def replace_activations(model: nn.Module, now: CurrentForward) -> None:
    """All that have no parameters and are called as such: modules of one input, of torch or of transformers' list."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            kind = activation_of(child)
            if kind is not None:
                setattr(module, name, CalledActivation(kind, now))


@torch.no_grad()
def activation_of(module: Any) -> Activation | None:
    where = type(module).__module__
    if not where.endswith((".activation", ".activations")) or next(module.parameters(), None) is not None:
        return None
    x = torch.randn((4, 32), generator=torch.Generator().manual_seed(0)) * 4
    try:
        given = module(x)
    except Exception:  # it takes something else
        return None
    if given.shape != x.shape:
        return None
    return next((kind for kind, way in _WAYS.items() if torch.allclose(given, way(x), 1e-5, 1e-6)), None)

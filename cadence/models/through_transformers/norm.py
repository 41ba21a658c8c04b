"""Norms in the places of transformers', where a trial shows that they compute what ours do.

transformers has a class of norms for each family. A copy whose weight is a vector of random numbers is run on others:
what it returns says what it is.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cadence.models.interface.build import BuildContext
from cadence.models.layers.parameter import empty_parameter
from cadence.models.through_transformers.current import CurrentForward, as_rows

RMS, RMS_PLUS_1, LAYER = "rms", "rms + 1", "layer"
_CLOSE = 1e-5  # between float32 results of two ways to compute the same


class CalledRMSNorm(nn.Module):
    """`wide` keeps the weight in float32: the 1 that is added to it while it loads is not rounded away."""

    def __init__(self, build: BuildContext, size: int, eps: float, *, wide: bool, now: CurrentForward) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size, dtype=torch.float32 if wide else build.dtype)
        self.eps = eps
        self.wide = wide
        self.now = now

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = as_rows(x)
        return self.now.ctx.ops.rms_norm(rows, self.weight, self.eps).view(x.shape)


class CalledLayerNorm(nn.Module):
    def __init__(
        self, build: BuildContext, size: int, eps: float, *, affine: bool, bias: bool, now: CurrentForward
    ) -> None:
        super().__init__()
        self.weight = empty_parameter(build, size) if affine else None
        self.bias = empty_parameter(build, size) if bias else None
        self.eps = eps
        self.now = now

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = as_rows(x)
        return self.now.ctx.ops.layer_norm(rows, self.weight, self.bias, self.eps).view(x.shape)


@dataclass(frozen=True, slots=True)
class FoundNorm:
    """What a module of transformers computes."""

    kind: str  # RMS | RMS_PLUS_1, whose weight is one more than its file says | LAYER
    size: int
    eps: float

    @property
    def added(self) -> float:
        """To the weight, while it loads."""
        return 1.0 if self.kind == RMS_PLUS_1 else 0.0


def find_norm(module: nn.Module) -> FoundNorm | None:
    """None: it is no norm, or another one than ours."""
    if next(module.children(), None) is not None or "norm" not in type(module).__name__.lower():
        return None
    own = dict(module.named_parameters(recurse=False))
    if any(vector.dim() != 1 for vector in own.values()) or own.keys() - {"weight", "bias"}:
        return None
    size = _size(module, own)
    eps = [value for value in vars(module).values() if isinstance(value, float) and 0.0 < value < 1e-2]
    if not size or len(set(eps)) != 1:
        return None
    kind = _kind(module, own, size, eps[0])
    return FoundNorm(kind, size, eps[0]) if kind else None


def norm_in_place_of(module: nn.Module, build: BuildContext, now: CurrentForward) -> nn.Module | None:
    """None: it is no norm, or another one than ours."""
    found = find_norm(module)
    if found is None:
        return None
    if found.kind == LAYER:
        own = dict(module.named_parameters(recurse=False))
        return CalledLayerNorm(build, found.size, found.eps, affine="weight" in own, bias="bias" in own, now=now)
    return CalledRMSNorm(build, found.size, found.eps, wide=found.kind == RMS_PLUS_1, now=now)


def _size(module: Any, own: dict[str, nn.Parameter]) -> int:
    shape = getattr(module, "normalized_shape", ())
    if own:
        return next(iter(own.values())).shape[0]
    return int(shape[0]) if len(shape) == 1 else 0


@torch.no_grad()
def _kind(module: nn.Module, own: dict[str, nn.Parameter], size: int, eps: float) -> str:
    generator = torch.Generator().manual_seed(0)
    trial = copy.copy(module)
    trial._parameters = {
        name: nn.Parameter(torch.rand(size, generator=generator), requires_grad=False) if name in own else None
        for name in module._parameters
    }
    x = torch.randn((3, size), generator=generator) * 2 + 0.5
    try:
        given = trial(x)
    except Exception:  # it takes something else
        return ""
    weight, bias = trial._parameters.get("weight"), trial._parameters.get("bias")
    rms = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
    ways = {LAYER: torch.nn.functional.layer_norm(x, (size,), weight, bias, eps)}
    if weight is not None and bias is None:
        ways |= {RMS: rms * weight, RMS_PLUS_1: rms * (1 + weight)}
    fits = [
        name for name, value in ways.items() if given.shape == x.shape and torch.allclose(given, value, _CLOSE, _CLOSE)
    ]
    return fits[0] if fits else ""

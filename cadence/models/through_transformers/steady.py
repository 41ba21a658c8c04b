"""Functions of torch that give a number other bits where it lies among others elsewhere, and what stands in for them.

On a CPU torch computes the last numbers of a range otherwise than those before them: a token's sigmoid would depend on
its company. Where a model calls such functions outside of modules that are replaced, each of its forwards runs under
`Steady`, which costs a little of every call of torch; other models' forwards do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode


def _sigmoid(x: torch.Tensor, **_: Any) -> torch.Tensor:
    wide = x.float()
    return torch.exp(-wide).add_(1).reciprocal_().to(x.dtype)


def _silu(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    wide = x.float()
    return (wide / torch.exp(-wide).add_(1)).to(x.dtype)


def _gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    wide = x.float()
    if approximate == "none":
        return (wide * 0.5 * (1 + torch.erf(wide * math.sqrt(0.5)))).to(x.dtype)
    inner = math.sqrt(2 / math.pi) * (wide + 0.044715 * wide * wide * wide)
    return (0.5 * wide * (1 + torch.tanh(inner))).to(x.dtype)


def _softplus(x: torch.Tensor, beta: float = 1.0, threshold: float = 20.0) -> torch.Tensor:
    scaled = x.float() * beta
    return (
        torch.where(scaled > threshold, scaled, torch.log(torch.exp(scaled.clamp(max=threshold)) + 1))
        .div(beta)
        .to(x.dtype)
    )


def _rsqrt(x: torch.Tensor) -> torch.Tensor:
    return x.sqrt().reciprocal_()


_STEADY: Mapping[Any, Callable[..., torch.Tensor]] = {
    torch.sigmoid: _sigmoid,
    torch.Tensor.sigmoid: _sigmoid,
    F.sigmoid: _sigmoid,
    F.silu: _silu,
    F.gelu: _gelu,
    F.softplus: _softplus,
    torch.rsqrt: _rsqrt,
    torch.Tensor.rsqrt: _rsqrt,
}


class Steady(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _STEADY.get(func, func)(*args, **(kwargs or {}))


class Unsteady(TorchFunctionMode):
    """Notes whether such functions are called."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found |= func in _STEADY
        return func(*args, **(kwargs or {}))


def steadied(wanted: bool) -> AbstractContextManager[Any]:
    return Steady() if wanted else nullcontext()

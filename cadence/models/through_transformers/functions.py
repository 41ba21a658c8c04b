"""Functions of torch that transformers' code calls on a CPU, and what stands in for them.

torch computes the last numbers of a range otherwise than those before them: a token's sigmoid would depend on its
company. And what torch computes is not recorded, where our ops are: a decode step of a model whose blocks are all ours
but for the sums of its residual stream is recorded once these are, too. A model that needs neither does without, since
it costs a little of every call of torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from cadence.kernels.interface.ops import Ops


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


_SUMS = (torch.Tensor.add, torch.Tensor.__add__, torch.add)
_VIEWS = ("__get__", "__getitem__", "view", "reshape", "unsqueeze", "squeeze", "size", "dim", "_set_grad_enabled")
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


class CpuFunctions(TorchFunctionMode):
    """Around a forward."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func in _SUMS and not kwargs and _alike(*args):
            x, y = args
            return self._ops.add(x.view(-1, x.shape[-1]), y.view(-1, y.shape[-1])).view(x.shape)
        return _STEADY.get(func, func)(*args, **(kwargs or {}))


def _alike(x: Any, y: Any) -> bool:
    return (
        isinstance(x, torch.Tensor)
        and isinstance(y, torch.Tensor)
        and x.shape == y.shape
        and x.dtype is y.dtype
        and x.dim() > 1
        and x.is_contiguous()
        and y.is_contiguous()
    )


class Unsteady(TorchFunctionMode):
    """Notes whether functions are called whose results depend on where a number lies."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_function__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        self.found |= func in _STEADY
        return func(*args, **(kwargs or {}))


def are_sums(functions: Iterable[Any]) -> bool:
    """Whether all that is computed by them is computed by our ops."""
    return all(func in _SUMS or getattr(func, "__name__", "") in _VIEWS for func in functions)

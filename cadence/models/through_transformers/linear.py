"""Matrices in the places of transformers' linear maps, of its head, and of those that its modules multiply by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cadence.kernels.interface.ops import Ops
from cadence.models.interface.build import BuildContext
from cadence.models.layers.embedding import Embedding, LMHead
from cadence.models.layers.linear import Linear
from cadence.models.layers.parameter import empty_parameter
from cadence.models.layers.rank_share import Held
from cadence.models.layers.weight import DenseWeight, KernelWeight, Weight
from cadence.models.through_transformers.current import CurrentForward, as_rows


class CalledLinear(Linear):
    """x [..., in] -> [..., out]. Called without a context, by code that takes it for a linear map of torch."""

    now: CurrentForward

    @classmethod
    def in_place_of(cls, build: BuildContext, held: Held, *, bias: bool, now: CurrentForward) -> CalledLinear:
        linear = cls.shared(build, held, bias=bias)
        linear.now = now
        return linear

    @property
    def in_features(self) -> int:
        return self.weight.cols

    @property
    def out_features(self) -> int:
        return self.weight.rows

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        rows = as_rows(x)
        return self.weight.linear(rows, self.bias, self.now.ctx).view(*x.shape[:-1], self.weight.rows)


class CalledHead(LMHead):
    """hidden [..., H] -> logits [..., V]"""

    bias: nn.Parameter | None  # [V]

    def __init__(self, build: BuildContext, tokens: Embedding, *, tied: bool, bias: bool, now: CurrentForward) -> None:
        super().__init__(build, tokens, tied=tied)
        self.bias = empty_parameter(build, tokens.held.rows[""][0], dtype=torch.float32) if bias else None
        self.now = now

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        logits = super().forward(as_rows(hidden), self.now.ctx)
        logits = logits if self.bias is None else logits + self.bias
        return logits.view(*hidden.shape[:-1], self.vocab_size)


class CalledMatrix(nn.Parameter):
    """[out, in]: of a module that multiplies by it itself, such as a router of experts. The product is of our ops, in
    which a token's bits are its own; all else is a tensor's."""

    now: CurrentForward
    weights: dict[torch.dtype, Weight]  # by the type of what is multiplied, made when it is first met

    @classmethod
    def of(cls, values: torch.Tensor, now: CurrentForward, weights: dict[torch.dtype, Weight]) -> CalledMatrix:
        matrix = values.as_subclass(cls)
        matrix.now, matrix.weights = now, weights
        return matrix

    def product(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [..., in] of its type -> [..., out]"""
        ctx = self.now.ctx
        if x.dtype not in self.weights:
            self.weights[x.dtype] = _packed(self.data, ctx.ops)
        made = self.weights[x.dtype].linear(as_rows(x), bias, ctx)
        return made.view(*x.shape[:-1], made.shape[-1])

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is F.linear and _is_ours(*args[:2]):
            return args[1].product(args[0], args[2] if len(args) > 2 else kwargs.get("bias"))
        made = super().__torch_function__(func, types, args, kwargs)
        if func in _OTHER_TYPES and isinstance(args[0], CalledMatrix):
            return cls.of(made, args[0].now, args[0].weights)
        return made


_OTHER_TYPES = (torch.Tensor.to, torch.Tensor.float, torch.Tensor.type, torch.Tensor.type_as)


def _is_ours(x: torch.Tensor, matrix: torch.Tensor) -> bool:
    return isinstance(matrix, CalledMatrix) and not matrix.is_meta and x.dtype is matrix.dtype


def _packed(values: torch.Tensor, ops: Ops) -> Weight:
    """On a CPU a product of tensors has bits that depend on how many rows there are."""
    packer = ops.packer("none", values.dtype, values.device) if values.device.type == "cpu" else None
    if packer is None:
        return DenseWeight(values)
    return KernelWeight(packer.stack([packer.pack_values(values, False)]))

"""The matrix of a module, which knows how to multiply: alone, after a norm, with its sums left in terms.

A module holds its weight and never looks inside. So a weight in another form (packed by the loader, quantised, a shard
of a rank) takes its place, and one that wraps it (an adapter) goes around it, and no family notices.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from cadence.kernels.interface.matrix import PackedMatrix
from cadence.kernels.interface.overwrite import overwrite
from cadence.models.interface.model import ForwardContext
from cadence.models.layers.rank_share import Held, all_of

# x, residual: [T, hidden] each, or what was made of x. Where an RMS norm comes next, x may be terms [P, T, hidden].
Stream = tuple[torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class RMSScale:
    """What an RMS norm does to a vector, for a product that takes it along."""

    weight: torch.Tensor  # [H]
    eps: float


class Weight(ABC):
    """W [rows, cols]. A kind of weight writes the products; what others make of them it may do faster."""

    rows: int
    cols: int

    @abstractmethod
    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        """x [T, cols], bias [rows] or None -> [T, rows]."""

    @abstractmethod
    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        """x [S, cols] -> [S, rows], float32 where that costs nothing, else x's dtype."""

    @abstractmethod
    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        """ids [T] int32 -> W[ids] * scale, [T, cols]."""

    def values_of(self, first: int, count: int) -> torch.Tensor:
        """Rows [first, first + count) as numbers, [count, cols] float32."""
        raise TypeError(f"a {type(self).__name__} does not show its numbers")

    def wrapped(self, around: Callable[[Weight], Weight]) -> Weight:
        """With another around what this rank has of it."""
        return around(self)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        """As `linear`, or terms [P, T, rows] that an RMS norm adds up."""
        return self.linear(x, bias, ctx)

    def after_norm(self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, ctx: ForwardContext) -> Stream:
        """(linear(rms_norm(x + residual)), x + residual)."""
        normed, total = ctx.ops.add_rms_norm(*stream, norm.weight, norm.eps)
        return self.linear(normed, bias, ctx), total

    def gated_after_norm(
        self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext
    ) -> Stream:
        """As `after_norm` of W [2 * I, cols] = (gate, up), then gelu_tanh or silu(gate) * up: ([T, I], [T, cols])."""
        inner, total = self.after_norm(stream, norm, bias, ctx)
        return ctx.ops.gelu_tanh_mul(inner) if gelu else ctx.ops.silu_mul(inner), total

    def takes_gate(self, rows: int) -> bool:
        """Whether `gated` of so many rows costs less than a gate and a product."""
        return False

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext, *, terms: bool
    ) -> torch.Tensor:
        """x [T, 2 * cols] = (gate, up) -> `linear` of gelu_tanh or silu(gate) * up; with `terms`, `linear_terms`."""
        inner = ctx.ops.gelu_tanh_mul(x) if gelu else ctx.ops.silu_mul(x)
        return self.linear_terms(inner, bias, ctx) if terms else self.linear(inner, bias, ctx)

    @property
    def innermost(self) -> Weight:
        """What a checkpoint fills, without what was put around it."""
        return self

    def to_fill(self) -> torch.Tensor:
        """[rows, cols], for the values of a checkpoint; without memory where they are to be packed instead."""
        raise TypeError(f"a {type(self).__name__} is filled as it is made")


class DenseWeight(Weight):
    """A tensor."""

    def __init__(self, values: torch.Tensor) -> None:
        self.values = values  # [rows, cols]
        self.rows, self.cols = values.shape

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.linear(x, self.values, bias)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.linear_terms(x, self.values, bias)

    def after_norm(self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, ctx: ForwardContext) -> Stream:
        return ctx.ops.add_norm_linear(stream, (norm.weight, norm.eps), self.values, bias)

    def gated_after_norm(
        self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext
    ) -> Stream:
        return ctx.ops.add_norm_gated(stream, (norm.weight, norm.eps), self.values, bias, gelu)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.logits(x, self.values)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        return ctx.ops.embed(ids, self.values, scale)

    def values_of(self, first: int, count: int) -> torch.Tensor:
        return self.values[first : first + count].float()

    def to_fill(self) -> torch.Tensor:
        return self.values


class KernelWeight(Weight):
    """A matrix in the form of the kernels that packed it; its products are theirs, whatever the ops of `ctx`."""

    def __init__(self, matrix: PackedMatrix, dtype: torch.dtype = torch.float32) -> None:
        """dtype: of the model that it was packed for"""
        self.matrix = matrix
        self._dtype = dtype
        self.rows, self.cols = matrix.rows, matrix.cols

    def take(self, matrix: PackedMatrix) -> None:
        """Other values, in the memory that holds these; of another form, in its own."""
        if not overwrite(self.matrix, matrix):
            self.matrix = matrix

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return self.matrix.linear(x, bias)

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None, ctx: ForwardContext) -> torch.Tensor:
        return self.matrix.linear_terms(x, bias)

    def after_norm(self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, ctx: ForwardContext) -> Stream:
        return self.matrix.add_norm_linear(stream, (norm.weight, norm.eps), bias, ctx.ops)

    def gated_after_norm(
        self, stream: Stream, norm: RMSScale, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext
    ) -> Stream:
        return self.matrix.add_norm_gated(stream, (norm.weight, norm.eps), bias, gelu, ctx.ops)

    def takes_gate(self, rows: int) -> bool:
        return self.matrix.takes_gate(rows)

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, ctx: ForwardContext, *, terms: bool
    ) -> torch.Tensor:
        return self.matrix.gated(x, bias, gelu, terms, ctx.ops)

    def logits(self, x: torch.Tensor, ctx: ForwardContext) -> torch.Tensor:
        return self.matrix.logits(x)

    def lookup(self, ids: torch.Tensor, scale: float, ctx: ForwardContext) -> torch.Tensor:
        return self.matrix.lookup(ids, scale)

    def values_of(self, first: int, count: int) -> torch.Tensor:
        return self.matrix.values(first, count)

    def to_fill(self) -> torch.Tensor:
        return torch.empty((self.rows, self.cols), dtype=self._dtype, device="meta")


class WeightHolder(nn.Module):
    """A module with a weight. Modules that share a matrix (a tied head) hold the same one."""

    inner = True  # between the layers; not where tokens become vectors or vectors logits, which keeps more bits
    takes_order = True  # its columns may lie in an order of their own, in which inputs are brought before a product

    def __init__(self, weight: Weight, held: Held | None = None) -> None:
        """held: what of a checkpoint's matrix this is, where ranks share it"""
        super().__init__()
        self.weight = weight
        self.held = held or all_of(weight.rows, weight.cols)

    def use(self, weight: Weight) -> None:
        """From now on it multiplies by this one, of the same size."""
        if (weight.rows, weight.cols) != (self.weight.rows, self.weight.cols):
            ours, theirs = (f"{w.rows} x {w.cols}" for w in (self.weight, weight))
            raise ValueError(f"a weight of {theirs} cannot take the place of one of {ours}")
        self.weight = weight

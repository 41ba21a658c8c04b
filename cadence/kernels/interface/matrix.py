"""Matrices in a form that only their own kernels know: blocks of few bits, rows side by side, what multiplies fast."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from cadence.kernels.interface.scaled_numbers import ScaledNumbers

Norm = tuple[torch.Tensor, float]  # weight [cols] and eps of an RMS norm
Pair = tuple[torch.Tensor, torch.Tensor]


class StreamOps(Protocol):
    """Those of `Ops` that matrices without a norm or a gate of their own call."""

    def add_rms_norm(self, x: torch.Tensor, residual: torch.Tensor, weight: torch.Tensor, eps: float) -> Pair: ...

    def silu_mul(self, x: torch.Tensor) -> torch.Tensor: ...

    def gelu_tanh_mul(self, x: torch.Tensor) -> torch.Tensor: ...


class PackedMatrix(Protocol):
    """W [rows, cols], bound to the kernels it was packed for: no others can read it."""

    rows: int
    cols: int

    def held(self) -> Sequence[object]:
        """What it reads: tensors, dataclasses of these and others that hold some; and numbers that say their form."""
        ...

    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """x [T, cols], bias [rows] float32 or None -> [T, rows] of x's dtype."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """x [S, cols] -> [S, rows] float32."""
        ...

    def lookup(self, ids: torch.Tensor, scale: float) -> torch.Tensor:
        """ids [T] int32 -> W[ids] * scale, [T, cols]."""
        ...

    def values(self, first: int, count: int) -> torch.Tensor:
        """Rows [first, first + count) as numbers, [count, cols] float32. From any thread; never recorded."""
        ...

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """As `linear`, or terms [P, T, rows] that an RMS norm adds up."""
        ...

    def add_norm_linear(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, ops: StreamOps) -> Pair:
        """stream = (x, residual) -> (linear(rms_norm(x + residual)), x + residual)"""
        ...

    def add_norm_gated(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, gelu: bool, ops: StreamOps) -> Pair:
        """The same of W [2 * I, cols] = (gate, up), then gelu_tanh or silu(gate) * up."""
        ...

    def takes_gate(self, rows: int) -> bool:
        """Whether `gated` of so many rows costs less than a gate and a product."""
        ...

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, terms: bool, ops: StreamOps
    ) -> torch.Tensor:
        """x [T, 2 * cols] = (gate, up) -> `linear` of gelu_tanh or silu(gate) * up; with `terms`, `linear_terms`"""
        ...


class ComposedMatrix(ABC):
    """One whose products have no norm inside and no gate after them: other ops do that."""

    @abstractmethod
    def held(self) -> Sequence[object]: ...

    @abstractmethod
    def linear(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor: ...

    def linear_terms(self, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        return self.linear(x, bias)

    def add_norm_linear(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, ops: StreamOps) -> Pair:
        normed, total = ops.add_rms_norm(*stream, *norm)
        return self.linear(normed, bias), total

    def add_norm_gated(self, stream: Pair, norm: Norm, bias: torch.Tensor | None, gelu: bool, ops: StreamOps) -> Pair:
        inner, total = self.add_norm_linear(stream, norm, bias, ops)
        return ops.gelu_tanh_mul(inner) if gelu else ops.silu_mul(inner), total

    def takes_gate(self, rows: int) -> bool:
        return False

    def gated(
        self, x: torch.Tensor, bias: torch.Tensor | None, gelu: bool, terms: bool, ops: StreamOps
    ) -> torch.Tensor:
        inner = ops.gelu_tanh_mul(x) if gelu else ops.silu_mul(x)
        return self.linear_terms(inner, bias) if terms else self.linear(inner, bias)


class MatrixPacker(Protocol):
    """Packs the matrices of one model. A part is one tensor of its checkpoint; only the packer knows what it is."""

    keeps_blocks: bool  # whether quantised blocks of a file may stay as they are
    takes_numbers: bool  # whether `pack_numbers` takes some
    device: torch.device  # that matrices are made on

    def pack_blocks(self, kind: str, blocks: torch.Tensor, rows: int, cols: int) -> Any | None:
        """blocks: [bytes] uint8, of the GGUF type `kind` -> a part; None where no kernel multiplies that type."""
        ...

    def pack_numbers(self, stored: ScaledNumbers) -> Any | None:
        """A matrix of a quantised checkpoint -> a part; None where no kernel multiplies such numbers."""
        ...

    def pack_values(self, values: torch.Tensor, inner: bool) -> Any:
        """values [rows, cols] of any float dtype -> a part. Not `inner`: it turns tokens into vectors or back."""
        ...

    def stack(self, parts: Sequence[Any], order: torch.Tensor | None = None) -> PackedMatrix:
        """Parts of one input, one below the other. order [cols]: their column j is column order[j] of the matrix."""
        ...
